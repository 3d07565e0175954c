from __future__ import annotations

import librosa
import numpy as np
import pytest

from nest_ssl.data.audio.sample_rate import resample


@pytest.mark.parametrize("rate", [8000, 11025, 16001, 22050, 44100, 48000])
@pytest.mark.parametrize("length", [1, 7, 1000, 44100])
def test_equals_librosa_bit_for_bit(rate: int, length: int) -> None:
    samples = np.random.default_rng(rate + length).standard_normal(length).astype(np.float32)
    expected = librosa.resample(samples, orig_sr=rate, target_sr=16000)
    ours = resample(samples, rate, 16000)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, expected)


def test_channels_are_resampled_separately_as_librosa_does() -> None:
    samples = np.random.default_rng(0).standard_normal((5000, 3)).astype(np.float32)  # (S, C)
    expected = librosa.resample(samples.T, orig_sr=44100, target_sr=16000).T
    np.testing.assert_array_equal(resample(samples, 44100, 16000), expected)


def test_the_same_rate_and_empty_audio_are_returned_unchanged() -> None:
    samples = np.ones(10, np.float32)
    assert resample(samples, 16000, 16000) is samples
    assert len(resample(samples[:0], 8000, 16000)) == 0
