"""Loudness and silence are those that librosa and naive sums give."""

from __future__ import annotations

import librosa
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.apps.datatools.check_lines import measure_loudness

RATE = 16000
FRAME = 400  # 25 ms


@pytest.fixture
def speech() -> np.ndarray:
    """Bursts of noise of several levels with faint noise between them; the last frame is incomplete."""
    draw = np.random.default_rng(0)
    levels = np.repeat(draw.choice([1e-4, 1e-3, 0.05, 0.2], 40), 1601)
    return (levels * draw.standard_normal(len(levels))).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_silence_is_the_share_of_librosas_frames_40_db_below_the_loudest(speech: np.ndarray, rate: int) -> None:
    length = round(0.025 * rate)
    rms = librosa.feature.rms(y=speech, frame_length=length, hop_length=length, center=False)[0]
    expected = np.mean(librosa.amplitude_to_db(rms, ref=rms.max(), amin=1e-10, top_db=None) < -40)
    assert 0 < expected < 1
    assert measure_loudness(speech, rate).silence == expected


def test_rms_is_that_of_a_naive_sum(speech: np.ndarray) -> None:
    exact = speech.astype(np.float64)
    assert measure_loudness(speech, RATE).rms == pytest.approx(10 * np.log10(np.mean(exact**2)), abs=1e-9)


def test_a_sine_at_full_scale_is_3_decibels_below_a_constant() -> None:
    sine = np.sin(2 * np.pi * 100 * np.arange(RATE) / RATE).astype(np.float32)
    assert measure_loudness(sine, RATE).rms == pytest.approx(-3.0103, abs=1e-4)
    assert measure_loudness(np.ones(RATE, dtype=np.float32), RATE).rms == 0.0


def test_samples_at_full_scale_are_counted_on_both_sides() -> None:
    integers = np.array([32767, -32768, -32767, 32766, -32766, 0, 1, 2], dtype=np.float32)
    assert measure_loudness(integers / 32768, RATE).clipped == 3 / 8


@pytest.mark.parametrize("length", [1, 7, FRAME, 3 * FRAME + 1])
def test_zeros_are_all_silence_and_infinitely_quiet(length: int) -> None:
    assert measure_loudness(np.zeros(length, dtype=np.float32), RATE) == (-np.inf, 0.0, 1.0)


@given(
    samples=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=900), gain=st.floats(-60, 0), rate=st.just(RATE)
)
def test_gain_moves_levels_and_leaves_silence(samples: list[float], gain: float, rate: int) -> None:
    signal = np.array(samples, dtype=np.float64)
    before, after = measure_loudness(signal, rate), measure_loudness(signal * 10 ** (gain / 20), rate)
    assert 0 <= before.silence <= 1
    if np.abs(signal).max() > 1e-25:  # the squares of smaller samples would be 0
        assert before.rms <= 20 * np.log10(np.abs(signal).max()) + 1e-9
        assert after.rms == pytest.approx(before.rms + gain, abs=1e-6)
