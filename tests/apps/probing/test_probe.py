"""Probes with a known result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from nest_ssl.apps.features import Encoder
from nest_ssl.apps.probing import ProbeRequest, probe
from nest_ssl.apps.probing.examples import Example, folds, split
from nest_ssl.apps.probing.probe import fit_and_try
from nest_ssl.data.manifest import ManifestEntry
from nest_ssl.errors import ManifestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

CONFIG = Path(__file__).parents[3] / "config" / "nest_fast-conformer.yaml"
RATE = 16000


@pytest.fixture(scope="module")
def order_manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("order")
    generator = np.random.default_rng(0)
    lines = []
    for number in range(200):
        first = ("low", "high")[number % 2]
        soundfile.write(folder / f"{number}.wav", two_sounds(first, generator), RATE)
        lines.append({"audio_filepath": str(folder / f"{number}.wav"), "first": first, "voice": number // 10})
    (folder / "manifest.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder / "manifest.json")


def two_sounds(first: str, generator: np.random.Generator) -> np.ndarray:
    """Return half a second of a low and of a high sound in noise; their order does not change the mean over time."""
    time = np.arange(RATE // 2) / RATE
    low, high = (0.1 * np.sin(2 * np.pi * generator.uniform(*band) * time) for band in ((300, 500), (2000, 3000)))
    return np.concatenate((low, high) if first == "low" else (high, low)) + 0.15 * generator.normal(size=RATE)


def test_random_weights_have_not_learned(model_file: Path, order_manifest: str) -> None:
    report = probe(ProbeRequest(model_file, order_manifest, "first", random_seeds=2), lambda *news: None)
    assert (report.labels, report.test, report.folds) == (2, 200, 5)
    assert "random weights" in report.unbeaten
    assert report.verdict.startswith("not shown that it learned: not clearly better than random weights")
    assert [contender.name for contender in report.contenders][:3] == ["model", "random weights", "log-mel means"]


@pytest.mark.slow
def test_an_encoder_that_was_taught_the_answer_has_learned(tmp_path: Path, order_manifest: str) -> None:
    torch.manual_seed(0)
    without_dropout = [f"model.encoder.{name}=0" for name in ("dropout", "dropout_pre_encoder", "dropout_att")]
    model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG, without_dropout).model)
    teach_order(model, steps=120)
    model.save_to(tmp_path / "taught.nemo")
    report = probe(ProbeRequest(tmp_path / "taught.nemo", order_manifest, "first", random_seeds=4), lambda *news: None)
    taught, untrained, log_mel, _ = (contender.accuracy.value for contender in report.contenders)
    assert taught > 0.95 > untrained
    assert log_mel < 0.7
    assert report.learned, report.verdict


def teach_order(model: EncDecDenoiseMaskedTokenPredModel, steps: int) -> None:
    """Train the encoder with labels: seconds, where masked prediction would take an hour."""
    generator = np.random.default_rng(1)
    head = torch.nn.Linear(32, 2)
    optimizer = torch.optim.Adam([*model.encoder.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(steps):
        answers = generator.integers(2, size=16)
        sounds = np.stack([two_sounds(("low", "high")[answer], generator) for answer in answers])
        signal, length = torch.from_numpy(sounds).float(), torch.full((16,), RATE)
        features, frames = model.preprocessor(input_signal=signal, length=length)
        encoded, _ = model.encoder(audio_signal=features, length=frames)
        loss = torch.nn.functional.cross_entropy(head(encoded.mean(dim=2)), torch.from_numpy(answers))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_groups_and_a_test_manifest(model_file: Path, order_manifest: str) -> None:
    request = ProbeRequest(model_file, order_manifest, "first", group_by="voice", random_seeds=1)
    together = probe(request, lambda *news: None)
    assert (together.train, together.test, together.folds) == (200, 200, 5)
    apart = probe(replace(request, test=order_manifest, limit=60), lambda *news: None)
    assert (apart.train, apart.test, apart.folds) == (60, 60, 1)


@pytest.mark.parametrize(("label", "message"), [("frist", "did you mean 'first'"), ("audio_filepath", "no two labels")])
def test_a_label_without_two_frequent_values_is_refused(
    model_file: Path, order_manifest: str, label: str, message: str
) -> None:
    with pytest.raises(ManifestError, match=message):
        probe(ProbeRequest(model_file, order_manifest, label), lambda *news: None)


def test_the_layer_is_chosen_without_the_test_set() -> None:
    generator = np.random.default_rng(0)
    examples = [_example(label, str(number)) for number, label in enumerate("ab" * 60)]
    labels = np.array([example.label for example in examples])
    vectors = generator.normal(size=(120, 4, 6))
    vectors[:, 2, 0] += 4.0 * (labels == "a")
    tried = generator.normal(size=(50, 4, 6))
    tried[:, 2, 0] += 4.0 * (np.arange(50) < 25)
    tried[:, 3, 0] += 100.0 * (np.arange(50) < 25)  # this layer is perfect on the test set only
    fitted = fit_and_try(vectors, tried, examples, ["a"] * 25 + ["b"] * 25, seed=0)
    assert fitted.layer == 2
    assert fitted.correct.mean() > 0.9


def test_labels_without_meaning_are_guessed_no_better_than_by_chance() -> None:
    generator = np.random.default_rng(0)
    examples = [_example(label, str(number)) for number, label in enumerate("ab" * 100)]
    fitted = fit_and_try(
        generator.normal(size=(200, 3, 20)), generator.normal(size=(400, 3, 20)), examples, list("ab" * 200), seed=0
    )
    assert 0.4 < fitted.correct.mean() < 0.6


def test_a_group_is_on_one_side_and_labels_are_on_both() -> None:
    examples = [_example("abc"[number % 3], str(number // 6)) for number in range(120)]
    first, second = split(examples, 5, seed=0)
    assert sorted(first + second) == list(range(120))
    assert {examples[index].group for index in first}.isdisjoint(examples[index].group for index in second)
    assert {examples[index].label for index in second} == set("abc")


def test_every_utterance_is_tested_once_by_a_probe_on_other_groups() -> None:
    examples = [_example("ab"[number % 2], str(number // 4)) for number in range(100)]
    tried = []
    for learnt, held_out in folds(examples, 5, seed=0):
        assert {examples[index].group for index in learnt}.isdisjoint(examples[index].group for index in held_out)
        tried += held_out
    assert sorted(tried) == list(range(100))


def test_a_label_that_no_other_group_has_is_left_out(model_file: Path, order_manifest: str, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in Path(order_manifest).read_text().splitlines()[:80]]
    for row in rows[:10]:
        row["first"] = "neither"  # one voice has all utterances of this label
    manifest = tmp_path / "manifest.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = ProbeRequest(model_file, str(manifest), "first", group_by="voice", random_seeds=1)
    report = probe(request, lambda *news: None)
    assert (report.labels, report.test, report.left_out) == (3, 70, 10)


def test_a_split_that_leaves_one_label_is_refused() -> None:
    """Some seeds hold out the only group of a label; these splits are refused."""
    examples = [_example("b" if group == 0 else "a", str(group)) for group in range(4) for _ in range(5)]
    refused = []
    for seed in range(20):
        try:
            learnt, _ = split(examples, 4, seed)
            assert {examples[index].label for index in learnt} == {"a", "b"}
        except ManifestError as error:
            refused.append(str(error))
    assert refused
    assert all("only label 'a' is left to learn from" in message and "--group-by" in message for message in refused)


def test_a_label_of_one_group_is_refused_before_anything_is_encoded(
    model_file: Path, order_manifest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.loads(line) for line in Path(order_manifest).read_text().splitlines()[:20]]
    for number, row in enumerate(rows):
        row |= {"speaker": number // 5, "accent": "north" if number < 5 else "south"}
    manifest = tmp_path / "accents.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = ProbeRequest(model_file, str(manifest), "accent", test=str(manifest), group_by="speaker")
    seed = next(seed for seed in range(20) if _leaves_one_label(seed))
    monkeypatch.setattr(Encoder, "encode", lambda *_: pytest.fail("was encoded"))
    with pytest.raises(ManifestError, match="only label 'south' is left to learn from"):
        probe(replace(request, seed=seed), lambda *news: None)


def _leaves_one_label(seed: int) -> bool:
    """Return whether this seed holds out the only group of a label, the first of four groups."""
    examples = [_example("north" if number < 5 else "south", str(number // 5)) for number in range(20)]
    try:
        split(examples, 4, seed)
    except ManifestError:
        return True
    return False


def _example(label: str, group: str) -> Example:
    return Example(ManifestEntry("x.wav", None, 0.0, ""), label, group)
