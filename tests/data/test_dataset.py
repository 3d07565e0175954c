# ruff: noqa: NPY002 - NumPy's global generator is what is tested
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nest_ssl.data import AudioNoiseDataset, pad_audio
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.errors import AudioError, ManifestError

RATE = 16000


def test_an_item_is_an_utterance_with_noise_of_its_length(corpus: DummyCorpus) -> None:
    dataset = AudioNoiseDataset(
        manifest_filepath=str(corpus.train_manifest), noise_manifest=[str(corpus.noise_manifest)], sample_rate=RATE
    )
    assert len(dataset) == 12
    for index in range(len(dataset)):
        item = dataset[index]
        assert item.sample_id == str(index)
        assert len(item.audio) == len(item.noise) == item.audio_len
        assert len(item.audio) == round(dataset.manifest.durations[index] * RATE)
        assert 0 < item.noise_len <= item.audio_len
        assert item.noise.any()
        assert item.problems == ()


def test_short_audio_is_lengthened(write_audio: Callable, write_manifest: Callable) -> None:
    path = write_manifest([write_audio("a.wav", np.linspace(0.1, 0.5, 3000))])
    repeated = AudioNoiseDataset(manifest_filepath=path, sample_rate=RATE, min_audio_len_secs=0.5)[0]
    assert torch.equal(repeated.audio[:3000], repeated.audio[3000:6000])
    zeros = AudioNoiseDataset(manifest_filepath=path, sample_rate=RATE, pad_audio_mode="zero")[0]
    assert (len(zeros.audio), int(zeros.audio_len)) == (RATE, RATE)
    assert not zeros.audio[3000:].any()


def test_pad_audio() -> None:
    audio = torch.tensor([1.0, 2.0, 3.0])
    assert pad_audio(audio, 7, "repeat").tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert pad_audio(audio, 5, "zero").tolist() == [1, 2, 3, 0, 0]
    assert pad_audio(audio, 2, "zero") is audio
    assert pad_audio(audio[:0], 2, "repeat").tolist() == [0, 0]
    with pytest.raises(ValueError, match="'loop'; expected 'repeat' or 'zero'"):
        pad_audio(audio, 5, "loop")  # type: ignore[arg-type]


@pytest.fixture
def broken(write_audio: Callable, write_manifest: Callable, tmp_path: Path) -> str:
    """Six lines, of which 2 to 5 cannot be used: missing, not audio, empty, NaN."""
    (tmp_path / "text.wav").write_text("this is not audio")
    good = np.linspace(0, 0.25, RATE)
    rows = [
        write_audio("0.wav", good),
        {"audio_filepath": "missing.wav", "duration": 1.0},
        {"audio_filepath": "text.wav", "duration": 1.0},
        {**write_audio("empty.wav", good[:0]), "duration": 1.0},
        write_audio("nan.wav", np.where(np.arange(RATE) == 5, np.nan, good)),
        write_audio("5.wav", 2 * good),
    ]
    return write_manifest(rows)


def test_unreadable_files_are_replaced_by_the_next_readable_one_and_named(broken: str) -> None:
    dataset = AudioNoiseDataset(manifest_filepath=broken, sample_rate=RATE)
    items = [dataset[index] for index in range(6)]
    assert [item.sample_id for item in items] == ["0", "5", "5", "5", "5", "5"]
    assert [len(item.problems) for item in items] == [0, 4, 3, 2, 1, 0]
    assert dataset.collate_fn(items).skipped == 10
    kinds = ["unreadable", "unreadable", "empty", "not_finite"]
    names = ["missing.wav", "text.wav", "empty.wav", "nan.wav"]
    for number, problem, kind, name in zip(range(2, 6), items[1].problems, kinds, names, strict=True):
        assert (problem.kind, problem.outcome, problem.line) == (kind, "skipped", f"{broken}:{number}")
        assert problem.file.endswith(name)
        assert problem.message.startswith(problem.file)
        assert problem.message.endswith(f"({broken}:{number})")


def test_the_search_continues_at_the_start_and_gives_up_after_one_round(
    write_audio: Callable, write_manifest: Callable
) -> None:
    bad = {"audio_filepath": "missing.wav", "duration": 1.0}
    path = write_manifest([write_audio("a.wav", np.linspace(0, 0.1, RATE)), bad, bad])
    assert AudioNoiseDataset(manifest_filepath=path, sample_rate=RATE)[1].sample_id == "0"
    with pytest.raises(AudioError, match=r"missing\.wav: .*giving up"):
        AudioNoiseDataset(manifest_filepath=write_manifest([bad] * 300), sample_rate=RATE)[0]


@pytest.mark.parametrize("index", [1, 2, 3, 4])
def test_the_strict_policy_stops_at_file_and_line(broken: str, index: int) -> None:
    dataset = AudioNoiseDataset(manifest_filepath=broken, sample_rate=RATE, unreadable_audio="stop")
    with pytest.raises(AudioError) as caught:
        dataset[index]
    assert f"({broken}:{index + 1})" in str(caught.value)
    assert ".wav: " in str(caught.value)


def test_several_channels_need_a_selector(write_audio: Callable, write_manifest: Callable) -> None:
    path = write_manifest([write_audio("s.wav", np.full((RATE, 2), 0.1))])
    options: dict[str, Any] = {"manifest_filepath": path, "sample_rate": RATE, "unreadable_audio": "stop"}
    assert AudioNoiseDataset(**options, channel_selector="average")[0].audio.shape == (RATE,)
    for selector in (None, [0, 1]):
        with pytest.raises(AudioError, match="channel_selector"):
            AudioNoiseDataset(**options, channel_selector=selector)[0]


@pytest.fixture
def suspicious(write_audio: Callable, write_manifest: Callable) -> str:
    """Five lines: healthy, silent, shorter and longer than the manifest says, healthy."""
    sound = np.sin(np.arange(2 * RATE) / 10)
    rows = [
        write_audio("0.wav", sound),
        write_audio("silent.wav", 0 * sound),
        {**write_audio("shorter.wav", sound[:RATE]), "duration": 1.5},
        {**write_audio("longer.wav", sound), "duration": 1.5},
        write_audio("4.wav", sound / 2),
    ]
    return write_manifest(rows, "suspicious.json")


def test_suspicious_files_are_used_unchanged_and_named(suspicious: str) -> None:
    dataset = AudioNoiseDataset(manifest_filepath=suspicious, sample_rate=RATE)
    items = [dataset[index] for index in range(5)]
    assert [item.sample_id for item in items] == ["0", "1", "2", "3", "4"]
    assert [int(item.audio_len) / RATE for item in items] == [2, 2, 1, 1.5, 2]
    found = [[(problem.kind, problem.outcome) for problem in item.problems] for item in items]
    assert found == [[], [("silent", "used")], [("shorter", "used")], [("longer", "used")], []]
    assert dataset.collate_fn(items).skipped == 0


def test_suspicious_files_are_skipped_or_stop_on_request(suspicious: str) -> None:
    dataset = AudioNoiseDataset(manifest_filepath=suspicious, sample_rate=RATE, suspicious_audio="skip")
    assert [dataset[index].sample_id for index in range(5)] == ["0", "4", "4", "4", "4"]
    assert [problem.kind for problem in dataset[1].problems] == ["silent", "shorter", "longer"]
    assert dataset.collate_fn([dataset[1]]).skipped == 3
    dataset = AudioNoiseDataset(manifest_filepath=suspicious, sample_rate=RATE, suspicious_audio="stop")
    assert dataset[0].problems == ()
    for index, what in ((1, "is silent"), (2, "has 1.000 s, the manifest says 1.5 s"), (3, "has 2.000 s")):
        with pytest.raises(AudioError, match=rf"\.wav: {what}.*\({re.escape(suspicious)}:{index + 1}\)$"):
            dataset[index]


def test_noise_that_cannot_be_read_is_named_too(broken: str, suspicious: str) -> None:
    dataset = AudioNoiseDataset(manifest_filepath=suspicious, sample_rate=RATE, noise_manifest=broken)
    np.random.seed(0)
    problems = [problem for index in range(10) for problem in dataset[index % 2 * 4].problems]
    assert {problem.outcome for problem in problems} == {"drew other noise"}
    assert {problem.kind for problem in problems} <= {"unreadable", "not_finite"}
    assert all(problem.message.endswith(f"({problem.line})") for problem in problems)


def test_replacing_a_file_draws_no_extra_numbers(broken: str, corpus: DummyCorpus) -> None:
    dataset = AudioNoiseDataset(manifest_filepath=broken, noise_manifest=str(corpus.noise_manifest), sample_rate=RATE)
    np.random.seed(0)
    direct = dataset[5]
    np.random.seed(0)
    assert torch.equal(dataset[2].noise, direct.noise)


def test_missing_manifests_name_their_key(corpus: DummyCorpus) -> None:
    with pytest.raises(ManifestError, match=r"model\.train_ds\.manifest_filepath: is empty"):
        AudioNoiseDataset(manifest_filepath="", sample_rate=RATE, key="model.train_ds")
    with pytest.raises(ManifestError, match=r"model\.train_ds\.noise_manifest: 'absent': no such file"):
        AudioNoiseDataset(
            manifest_filepath=str(corpus.train_manifest),
            noise_manifest="absent",
            sample_rate=RATE,
            key="model.train_ds",
        )
