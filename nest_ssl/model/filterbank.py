"""Triangular mel filters on Slaney's scale, the same numbers as librosa's without its 0.4 GB of dependencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Slaney's scale (Auditory Toolbox): linear below 1 kHz, logarithmic above.
_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _HZ_PER_MEL  # 15
_LOG_STEP = np.log(6.4) / 27.0


def hz_to_mel(frequency: float) -> float:
    if frequency < _BREAK_HZ:
        return frequency / _HZ_PER_MEL
    return _BREAK_MEL + np.log(frequency / _BREAK_HZ) / _LOG_STEP


def mel_to_hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mels >= _BREAK_MEL, _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL)), _HZ_PER_MEL * mels)


def mel_filters(
    sample_rate: int, n_fft: int, n_mels: int, low: float, high: float, area_normalised: bool = True
) -> NDArray[np.float32]:
    """Filters (n_mels, n_fft // 2 + 1): triangles between neighbouring mel points, of equal area if normalised."""
    bins = np.fft.rfftfreq(n=n_fft, d=1.0 / sample_rate)
    edges = mel_to_hz(np.linspace(hz_to_mel(low), hz_to_mel(high), n_mels + 2))
    widths = np.diff(edges)
    distance = np.subtract.outer(edges, bins)  # (n_mels + 2, bins): how far each bin lies below each edge
    rising = -distance[:-2] / widths[:-1, None]
    falling = distance[2:] / widths[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    if area_normalised:
        filters *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return filters
