"""Change of sample rate with soxr's high quality, and the length convention that NeMo's numbers depend on."""

from __future__ import annotations

import math

import numpy as np
import soxr


def resample(samples: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample (S) or (S, C) along time; the result has exactly `ceil(S * target / source)` samples.

    Channels are resampled one by one. soxr decides the number of samples by its own rounding, so the result is cut or
    padded with zeros by a sample at most.
    """
    if source_rate == target_rate or len(samples) == 0:
        return samples
    if samples.ndim == 2:
        columns = [resample(samples[:, channel], source_rate, target_rate) for channel in range(samples.shape[1])]
        return np.stack(columns, axis=1)  # C x (S) -> (S, C)
    length = math.ceil(len(samples) * (float(target_rate) / source_rate))
    resampled = soxr.resample(samples, source_rate, target_rate, quality="HQ")[:length]
    return np.pad(resampled, (0, length - len(resampled)))
