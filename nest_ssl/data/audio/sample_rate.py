"""Sample rates: the usual one, the one that a configuration sets, and resampling to it as NeMo does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import soxr

SAMPLE_RATE = 16000  # Hz, of every shipped configuration


def sample_rate_of(*nodes: Any) -> Any:
    """Return the `sample_rate` of the first configuration node that sets one, else the usual rate."""
    rates = (node.get("sample_rate") for node in nodes if isinstance(node, Mapping))
    return next((rate for rate in rates if rate), SAMPLE_RATE)


def resample(samples: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """Resample (S) or (S, C) along time by soxr's `HQ`; return exactly `ceil(S * target / source)` samples.

    Channels are resampled one by one. soxr rounds the number of samples differently, so the result is cut or padded
    with zeros by at most one sample: NeMo's numbers depend on this length.
    """
    if source_rate == target_rate or len(samples) == 0:
        return samples
    if samples.ndim == 2:
        columns = [resample(samples[:, channel], source_rate, target_rate) for channel in range(samples.shape[1])]
        return np.stack(columns, axis=1)  # C x (S) -> (S, C)
    length = math.ceil(len(samples) * (float(target_rate) / source_rate))
    resampled = soxr.resample(samples, source_rate, target_rate, quality="HQ")[:length]
    return np.pad(resampled, (0, length - len(resampled)))
