"""A run reports problems of its data before its first step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import soundfile
import soxr

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.shell import quoted
from nest_ssl.testing import manifests_of
from nest_ssl.training.run import main

CONFIG = Path(__file__).resolve().parents[2] / "config"
SMALL = [
    *("model.encoder.n_layers=1", "model.encoder.d_model=16", "model.encoder.n_heads=2", "model.num_classes=32"),
    *("model.encoder.subsampling_conv_channels=8", "trainer.max_steps=1", "model.validation_ds.noise_manifest=null"),
]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DummyCorpus:
    monkeypatch.chdir(tmp_path)
    return make_dummy_corpus(tmp_path / "data", train=6, val=2, noise=2)


def warnings(corpus: DummyCorpus, capsys: pytest.CaptureFixture[str], *overrides: str) -> list[str]:
    """Return the warnings of a run of one step."""
    assert main(["--config-name", "nest_tiny", *SMALL, *manifests_of(corpus), *overrides], config_dir=CONFIG) == 0
    lines = "".join(capsys.readouterr()).splitlines()
    return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]


def test_validation_utterances_in_the_training_data_are_named_for_each_validation_set(
    corpus: DummyCorpus, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = corpus.train_manifest.read_text().splitlines(keepends=True)
    (corpus.train_manifest.parent / "mixed val.json").write_text(corpus.val_manifest.read_text() + "".join(lines[3:5]))
    shutil.copy(corpus.train_manifest, corpus.train_manifest.with_name("copy.json"))
    names = [corpus.val_manifest.name, "mixed val.json", "copy.json"]
    listed = ",".join(f'"{corpus.train_manifest.parent / name}"' for name in names)
    found = [
        line
        for line in warnings(corpus, capsys, f"model.validation_ds.manifest_filepath=[{listed}]")
        if "trained on" in line
    ]
    assert [line.partition(" validation")[0] for line in found] == ["2 of 4", "6 of 6"]
    assert "mixed val.json:3 (trained on as" in found[0]
    assert f"nest-ssl data check {quoted(str(corpus.train_manifest))} " in found[0]


def test_a_healthy_corpus_gives_no_warning(corpus: DummyCorpus, capsys: pytest.CaptureFixture[str]) -> None:
    assert not [line for line in warnings(corpus, capsys) if "trained on" in line or "narrow" in line]


def test_narrow_band_training_data_is_reported_as_an_estimate(
    corpus: DummyCorpus, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sorted((corpus.train_manifest.parent / "train").glob("*.wav"))[:4]:
        samples, rate = soundfile.read(file)
        soundfile.write(file, soxr.resample(soxr.resample(samples, rate, 8000), 8000, rate), rate)
    (line,) = [line for line in warnings(corpus, capsys) if "narrow band" in line]
    assert line.startswith("narrow band, an estimate from 6 training files: 4 of 6 hold no sound above 4000 Hz")
    assert line.endswith("--min-bandwidth names all of them")


@pytest.mark.parametrize("by_lhotse", [("train_ds",), ("train_ds", "validation_ds")], ids=len)
def test_data_for_lhotse_is_checked_too(
    corpus: DummyCorpus, capsys: pytest.CaptureFixture[str], by_lhotse: tuple[str, ...]
) -> None:
    pytest.importorskip("lhotse")
    lines = corpus.train_manifest.read_text().splitlines(keepends=True)
    corpus.val_manifest.write_text(corpus.val_manifest.read_text() + "".join(lines[3:5]))
    options = [f"model.{name}.use_lhotse=true" for name in by_lhotse]
    (line,) = [line for line in warnings(corpus, capsys, *options) if "trained on" in line]
    assert line.startswith("2 of 4 validation utterances")
