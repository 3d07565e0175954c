"""Telephone speech in a 16 kHz file is recognised by its spectrum, and counted in a set."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from numpy.random import RandomState

from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.data.inspection.bandwidth import estimate_narrow_band, is_narrow, measure_bandwidth
from nest_ssl.data.manifest import load_manifest
from nest_ssl.data.synthesis import Voice, speech

RATE = 16000
VOICES = [speech(Voice.number(index, 0), 4 * RATE, RandomState(index)) for index in range(6)]


def in_16_bits(samples: np.ndarray, peak: float) -> np.ndarray:
    """Round the samples as a 16-bit file does."""
    return (np.round(samples * peak * 2**15) / 2**15).astype(np.float32)


@pytest.mark.parametrize("peak", [0.9, 0.1])
@pytest.mark.parametrize(("rate", "bandwidth"), [(16000, 8000), (11025, 5512.5), (8000, 4000)])
def test_an_earlier_lower_sample_rate_is_detected(rate: int, bandwidth: float, peak: float) -> None:
    for voice in VOICES:
        there = in_16_bits(soxr.resample(voice, RATE, rate), peak)
        assert measure_bandwidth(there, rate) == min(rate / 2, bandwidth)
        back = in_16_bits(soxr.resample(there, rate, RATE), 1.0)
        assert measure_bandwidth(back, RATE) == bandwidth


@pytest.mark.parametrize("target", [22050, 44100, 48000])
def test_a_higher_rate_is_measured_too(target: int) -> None:
    narrow = soxr.resample(soxr.resample(VOICES[0], RATE, 8000), 8000, target)
    assert measure_bandwidth(in_16_bits(narrow, 0.9), target) == 4000
    assert measure_bandwidth(in_16_bits(soxr.resample(VOICES[0], RATE, target), 0.9), target) == target / 2


def test_hum_pauses_and_a_constant_do_not_change_it() -> None:
    narrow = soxr.resample(soxr.resample(VOICES[1], RATE, 8000), 8000, RATE)
    hum = np.sin(2 * np.pi * 50 * np.arange(len(narrow)) / RATE)
    for samples, bandwidth in ((VOICES[1], 8000), (narrow, 4000)):
        changed = np.concatenate((np.zeros(3 * RATE), samples + 0.05 * hum, np.zeros(3 * RATE))) * 0.5 + 0.1
        assert measure_bandwidth(in_16_bits(changed, 1.0), RATE) == bandwidth


@pytest.mark.parametrize("samples", [np.zeros(RATE), np.zeros(0), np.ones(10)], ids=len)
def test_silence_has_no_bandwidth(samples: np.ndarray) -> None:
    assert math.isnan(measure_bandwidth(samples, RATE))
    assert not is_narrow(math.nan, RATE)


def test_narrow_band_depends_on_the_rate_of_the_model() -> None:
    assert [is_narrow(4000, rate) for rate in (8000, 16000)] == [False, True]
    assert not is_narrow(8000, 16000)


@pytest.fixture
def mixed(corpus: DummyCorpus, tmp_path: Path) -> str:
    """Twelve utterances: every third was upsampled from 8 kHz, and one still has 8 kHz."""
    rows = []
    for number, line in enumerate(corpus.train_manifest.read_text().splitlines()):
        row = json.loads(line)
        samples, rate = soundfile.read(corpus.train_manifest.parent / row["audio_filepath"])
        if number % 3 == 0:
            samples = soxr.resample(soxr.resample(samples, rate, 8000), 8000, rate)
        if number == 1:
            samples, rate = soxr.resample(samples, rate, 8000), 8000
        soundfile.write(tmp_path / f"{number}.wav", samples, rate)
        rows.append({"audio_filepath": f"{number}.wav", "duration": len(samples) / rate})
    manifest = tmp_path / "mixed.json"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(manifest)


def test_the_sampled_files_are_always_the_same_and_need_no_random_numbers(mixed: str) -> None:
    manifest = load_manifest([mixed])
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    found = estimate_narrow_band([manifest, manifest], 16000, 8)
    assert found == estimate_narrow_band([manifest, manifest], 16000, 8)
    assert found.measured == 8
    assert 0 < found.lines < 8
    assert estimate_narrow_band([manifest], 16000, 100).lines == 5
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002


def test_unreadable_files_are_ignored(mixed: str, write_manifest: Callable[..., str]) -> None:
    (Path(mixed).parent / "0.wav").write_text("no audio")
    (Path(mixed).parent / "3.wav").unlink()
    found = estimate_narrow_band([load_manifest([mixed])], 16000, 100)
    assert (found.measured, found.lines) == (10, 3)
