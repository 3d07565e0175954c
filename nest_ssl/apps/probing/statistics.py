"""Confidence intervals of an accuracy, and of the difference of two on the same utterances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
DRAWS = 5000


@dataclass(frozen=True)
class Estimate:
    """An accuracy or a difference of accuracies, with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def accuracy(correct: np.ndarray) -> Estimate:
    """Return the share of correct answers (N), or its mean over seeds (seeds, N), with Wilson's interval."""
    share, count = float(correct.mean()), correct.shape[-1]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))


def difference(
    first: np.ndarray, second: np.ndarray, groups: Sequence[str], seed: int = 0, draws: int = DRAWS
) -> Estimate:
    """Return how much more often the first (N) is correct than the second (N), or than its mean over seeds (seeds, N).

    The interval is a bootstrap over groups of utterances and over seeds, because a single seed may be lucky.
    """
    gain = first.astype(float) - np.atleast_2d(second)  # (seeds, N)
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    gains, sizes = np.stack([np.bincount(group, row) for row in gain]), np.bincount(group)
    generator = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        drawn = generator.integers(len(sizes), size=len(sizes))
        seeds = generator.integers(len(gains), size=len(gains))
        values.append(gains[seeds].mean(axis=0)[drawn].sum() / sizes[drawn].sum())
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(gain.mean()), float(low), float(high))
