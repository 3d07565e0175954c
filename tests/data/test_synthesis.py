from __future__ import annotations

import numpy as np
import pytest
from numpy.random import RandomState

from nest_ssl.data import synthesis
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.data.synthesis import Voice, speech


def test_overlap_add_inverts_short_time_spectra() -> None:
    signal = RandomState(0).standard_normal(5000)
    frames = -(-5000 // synthesis.HOP)
    rebuilt = synthesis._signal(synthesis._spectra(signal, frames), 5000)
    np.testing.assert_allclose(rebuilt[200:4700], signal[200:4700], atol=1e-12)


@pytest.mark.parametrize("length", [16000, 16001, 40000])
def test_speech_has_the_requested_length_and_a_peak_of_one(length: int) -> None:
    samples = speech(Voice.number(0, seed=0), length, RandomState(1))
    assert len(samples) == length
    assert np.abs(samples).max() == pytest.approx(1.0)


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_voice_has_its_pitch(index: int) -> None:
    """The strongest lag of the autocorrelation is near the pitch period; it falls and varies by a tenth."""
    voice = Voice.number(index, seed=0)
    pulses = synthesis._glottal_pulses(voice, SAMPLE_RATE, RandomState(0))
    spectrum = np.abs(np.fft.rfft(pulses, 2 * SAMPLE_RATE)) ** 2
    correlation = np.fft.irfft(spectrum)[: SAMPLE_RATE // 60]
    shortest = SAMPLE_RATE // 300
    lag = shortest + int(np.argmax(correlation[shortest:]))
    assert SAMPLE_RATE / lag == pytest.approx(voice.pitch, rel=0.2)


def test_vowels_differ_by_their_formants() -> None:
    response = synthesis._formant_response(np.array([[730.0, 1090.0, 2440.0], [270.0, 2290.0, 3010.0]]))
    peaks = synthesis.FREQUENCIES[np.argmax(response[:, synthesis.FREQUENCIES < 1000], axis=1)]
    assert peaks == pytest.approx([730, 270], abs=40)


def test_words_and_pauses_alternate() -> None:
    samples = speech(Voice.number(2, seed=0), 6 * SAMPLE_RATE, RandomState(3))
    loudness = np.sqrt(np.mean(samples.reshape(-1, 160) ** 2, axis=1))
    assert 0.02 < np.mean(loudness < 0.01) < 0.6


@pytest.mark.parametrize("kind", [synthesis.coloured_noise, synthesis.hum, synthesis.music])
def test_noise_is_noise_of_its_length(kind) -> None:  # type: ignore[no-untyped-def]
    samples = kind(20001, RandomState(0))
    assert len(samples) == 20001
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() == pytest.approx(1.0)
