# ruff: noqa: NPY002 - NumPy's global generator is what is tested
from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch

from nest_ssl.data import load_noise_audio, load_noise_manifest, sample_noise
from nest_ssl.data.audio import AudioFile, AudioSegment
from nest_ssl.data.noise import Numerics, _warn_once
from nest_ssl.data.problems import Problem
from nest_ssl.errors import AudioError, ManifestError

RATE = 16000


@pytest.fixture(autouse=True)
def _warnings_start_afresh() -> None:
    _warn_once.cache_clear()


@pytest.mark.parametrize(
    ("subtype", "rate", "mean"),
    [
        ("DOUBLE", RATE, 0.0),
        ("PCM_16", RATE, 0.0),
        ("PCM_16", RATE, -3e-4),  # nearly always negative, so the file is finally read as a whole
        ("PCM_16", 8000, -3e-4),
        ("PCM_24", RATE, -3e-4),
    ],
)
def test_parts_of_a_longer_file_are_drawn_until_one_has_a_positive_sum(
    write_audio: Callable, write_manifest: Callable, subtype: str, rate: int, mean: float
) -> None:
    noise = mean + 0.1 * np.random.default_rng(0).standard_normal(3 * rate)
    entry = load_noise_manifest(write_manifest([write_audio("n.wav", noise, rate, subtype)]))[0]
    for seed in range(10):
        np.random.seed(seed)
        for _ in range(100):  # what NeMo does, step by step
            offset = np.random.uniform(0, 3.0 - 1.0)
            expected = AudioSegment.from_file(entry.audio_file, RATE, offset=offset, duration=1.0).samples
            if sum(expected) > 0:
                break
        after = np.random.rand()
        np.random.seed(seed)
        audio, length = load_noise_audio(entry, RATE, RATE)
        np.testing.assert_array_equal(audio.numpy(), expected)
        assert length == RATE
        assert np.random.rand() == after


def test_after_summing_a_file_only_the_used_part_is_read(
    write_audio: Callable, write_manifest: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.full(3 * RATE, -0.1)
    entry = load_noise_manifest(write_manifest([write_audio("n.wav", noise, subtype="PCM_16")]))[0]
    load_noise_audio(entry, RATE, RATE)  # a hundred parts, each negative: summed as a whole
    counts = []
    read = AudioFile.integers

    def counted(file: AudioFile, start: int = 0, frames: int = -1) -> np.ndarray:
        samples = read(file, start, frames)
        counts.append(len(samples))
        return samples

    monkeypatch.setattr(AudioFile, "integers", counted)
    load_noise_audio(entry, RATE, RATE)
    assert max(counts) == RATE  # the part that is used
    assert sum(counts) <= RATE + 100 * 2 * 256


def test_a_changed_file_is_summed_again(write_audio: Callable, write_manifest: Callable) -> None:
    for level in (-0.1, 0.1):
        row = write_audio("n.wav", np.full(3 * RATE, level), subtype="PCM_16")
        entry = load_noise_manifest(write_manifest([row]))[0]
        np.random.seed(0)
        load_noise_audio(entry, RATE, RATE)
        drawn = 100 if level < 0 else 1
        after = np.random.RandomState(0)
        after.uniform(size=drawn)
        assert np.random.rand() == after.rand()


def test_a_file_shorter_than_its_manifest_says_is_an_error_at_every_read(
    write_audio: Callable, write_manifest: Callable
) -> None:
    row = {**write_audio("n.wav", np.full(RATE, -0.1), subtype="PCM_16"), "duration": 1.2}
    entry = load_noise_manifest(write_manifest([row]))[0]
    for seed in range(20):
        np.random.seed(seed)
        trials = int(np.argmax(np.random.uniform(0, 1.2 - 0.1, size=1000) > 1.0)) + 1
        after = np.random.RandomState(seed)
        after.uniform(size=trials)
        np.random.seed(seed)
        with pytest.raises(AudioError, match="cannot be read"):
            load_noise_audio(entry, RATE, RATE // 10, max_trial=1000)
        assert np.random.rand() == after.rand()


def test_fast_takes_the_first_part_that_is_not_silent(write_audio: Callable, write_manifest: Callable) -> None:
    rows = [
        write_audio("below.wav", np.full(3 * RATE, -0.1), subtype="PCM_16"),
        write_audio("late.wav", np.where(np.arange(3 * RATE) < 2.5 * RATE, 0.0, -0.1), subtype="PCM_16"),
    ]
    below, late = load_noise_manifest(write_manifest(rows))
    np.random.seed(0)
    audio, _ = load_noise_audio(below, RATE, RATE, numerics="fast")
    after = np.random.RandomState(0)
    after.uniform()
    assert np.random.rand() == after.rand()
    assert (audio < 0).all()
    assert load_noise_audio(late, RATE, RATE, numerics="fast")[0].any()


def test_after_all_trials_the_last_part_is_taken(write_audio: Callable, write_manifest: Callable) -> None:
    entry = load_noise_manifest(write_manifest([write_audio("n.wav", np.full(2 * RATE, -0.1))]))[0]
    np.random.seed(0)
    audio, _ = load_noise_audio(entry, RATE, RATE, max_trial=7)
    after = np.random.rand()
    np.random.seed(0)
    np.random.uniform(size=7)
    assert np.random.rand() == after
    assert (audio < 0).all()


def test_a_shorter_file_is_padded_and_its_length_kept(write_audio: Callable, write_manifest: Callable) -> None:
    entry = load_noise_manifest(write_manifest([write_audio("n.wav", np.full(400, 0.5))]))[0]
    audio, length = load_noise_audio(entry, RATE, 1000)
    assert (len(audio), int(length), length.dtype) == (1000, 400, torch.int64)
    assert (audio[:400] == 0.5).all()
    assert not audio[400:].any()
    assert len(load_noise_audio(entry, RATE, 1000, pad_to_max=False)[0]) == 400
    assert len(load_noise_audio(entry, RATE)[0]) == 400


def test_a_file_longer_than_its_manifest_says_is_cut(write_audio: Callable, write_manifest: Callable) -> None:
    row = {**write_audio("n.wav", np.full(2000, 0.5)), "duration": None}
    audio, length = load_noise_audio(load_noise_manifest(write_manifest([row]))[0], RATE, 1000)
    assert (len(audio), int(length)) == (1000, 1000)


def test_the_offset_of_a_shorter_entry_counts(write_audio: Callable, write_manifest: Callable) -> None:
    row = {**write_audio("n.wav", np.arange(2000) / 2000), "offset": 0.05, "duration": 0.025}
    audio, _ = load_noise_audio(load_noise_manifest(write_manifest([row]))[0], RATE)
    np.testing.assert_allclose(audio, np.arange(800, 1200) / 2000, rtol=1e-6)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("seconds", [0.25, 2.0])
def test_silence_becomes_white_noise(
    write_audio: Callable,
    write_manifest: Callable,
    seconds: float,
    numerics: Numerics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = load_noise_manifest(write_manifest([write_audio("n.wav", np.zeros(int(seconds * RATE)))]))[0]
    np.random.seed(1)
    audio, _ = load_noise_audio(entry, RATE, RATE, min_white_noise_db=-30, max_white_noise_db=-29, numerics=numerics)
    level = 20 * np.log10(audio[: int(min(seconds, 1.0) * RATE)].std())
    assert level == pytest.approx(-30, abs=0.5)
    load_noise_audio(entry, RATE, RATE, numerics=numerics)
    assert caplog.text.count("adding white noise") == 1
    assert "manifest.json:1" in caplog.text


def test_a_bad_file_is_replaced_by_another_draw(write_audio: Callable, write_manifest: Callable) -> None:
    rows = [
        {"audio_filepath": "absent.wav", "duration": 9.0},
        write_audio("good.wav", np.full(2 * RATE, 0.1)),
        write_audio("stereo.wav", np.full((2 * RATE, 2), 0.1)),
        write_audio("nan.wav", np.full(2 * RATE, np.nan)),
    ]
    data = load_noise_manifest(write_manifest(rows))
    np.random.seed(0)
    problems: list[Problem] = []
    for _ in range(20):
        audio, length = sample_noise(data, RATE, 500, problems=problems)
        assert audio == pytest.approx(np.full(500, 0.1), abs=1e-6)
        assert length == 500
    assert {problem.kind for problem in problems} == {"unreadable", "channels", "not_finite"}
    assert {problem.outcome for problem in problems} == {"drew other noise"}


def test_without_readable_noise_there_is_silence(write_manifest: Callable, caplog: pytest.LogCaptureFixture) -> None:
    data = load_noise_manifest(write_manifest([{"audio_filepath": "absent.wav"}]))
    with caplog.at_level(logging.WARNING):
        unreadable = sample_noise(data, RATE, 500)
    assert "no noise could be read in 20 attempts" in caplog.text
    for audio, length in (unreadable, sample_noise([], RATE, 500)):
        assert (len(audio), int(length)) == (500, 500)
        assert not audio.any()


def test_no_noise_data_draws_nothing() -> None:
    np.random.seed(0)
    expected = np.random.rand()
    np.random.seed(0)
    sample_noise(load_noise_manifest(None), RATE, 10)
    assert np.random.rand() == expected


def test_an_unreadable_file_has_its_own_error_class(write_manifest: Callable) -> None:
    with pytest.raises(AudioError, match=r"absent\.wav: no such file"):
        load_noise_audio(load_noise_manifest(write_manifest([{"audio_filepath": "absent.wav"}]))[0], RATE)


def test_an_empty_noise_manifest_is_refused(write_manifest: Callable) -> None:
    with pytest.raises(ManifestError, match="noise_manifest: is empty"):
        load_noise_manifest("")
    with pytest.raises(ManifestError, match="has no entries"):
        load_noise_manifest(write_manifest([]))
