from __future__ import annotations

import librosa
import numpy as np
import pytest

from nest_ssl.data.audio.silence import frame_loudness, trim_silence


def faded_noise(seed: int, length: int) -> np.ndarray:
    """Return noise that is quiet at the start and fades at both ends, by random amounts."""
    rng = np.random.default_rng(seed)
    fade = 10.0 ** (-np.abs(np.linspace(-1, 1, length)) * rng.uniform(0, 6))
    fade[: length // 5] *= 10.0 ** -rng.uniform(2, 5)
    return (0.1 * rng.standard_normal(length) * fade).astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("length", [1, 300, 2048, 30001])
def test_equals_librosa_bit_for_bit(seed: int, length: int) -> None:
    samples = faded_noise(seed, length)
    rms = librosa.feature.rms(y=samples)[0]
    np.testing.assert_array_equal(frame_loudness(samples), librosa.amplitude_to_db(rms, ref=np.max, top_db=None))
    np.testing.assert_array_equal(trim_silence(samples), librosa.effects.trim(samples)[0])


@pytest.mark.parametrize("seed", range(4))
def test_the_loudest_of_several_channels_decides(seed: int) -> None:
    samples = np.stack([faded_noise(seed, 20000), 0.3 * faded_noise(seed + 100, 20000)[::-1]], axis=1)  # (S, C)
    np.testing.assert_array_equal(trim_silence(samples), librosa.effects.trim(samples.T)[0].T)


def test_digital_silence_is_kept() -> None:
    assert len(trim_silence(np.zeros(5000, np.float32))) == 5000
