"""Where sound ends is told by the spectrum, whatever the file's rate says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import soxr
from numpy.random import RandomState

from nest_ssl.data.audio.bandwidth import is_narrow, measure_bandwidth
from nest_ssl.data.synthesis import Voice, speech

RATE = 16000
VOICES = [speech(Voice.number(index, 0), 4 * RATE, RandomState(index)) for index in range(6)]


def in_16_bits(samples: np.ndarray, peak: float) -> np.ndarray:
    """As a file holds it."""
    return (np.round(samples * peak * 2**15) / 2**15).astype(np.float32)


@pytest.mark.parametrize("peak", [0.9, 0.1])
@pytest.mark.parametrize(("rate", "bandwidth"), [(16000, 8000), (11025, 5512.5), (8000, 4000)])
def test_a_lower_rate_on_the_way_leaves_its_mark(rate: int, bandwidth: float, peak: float) -> None:
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
def test_where_nothing_is_heard_nothing_is_told(samples: np.ndarray) -> None:
    assert math.isnan(measure_bandwidth(samples, RATE))
    assert not is_narrow(math.nan, RATE)


def test_narrow_is_what_a_model_of_this_rate_misses() -> None:
    assert [is_narrow(4000, rate) for rate in (8000, 16000)] == [False, True]
    assert not is_narrow(8000, 16000)
