"""How memory grows with a batch: a part that is always there, one for each second, one for its square (attention)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.apps.doctor.steps import Outcome

_NONE, _MOST = 0, 10**6  # batch sizes


@dataclass(frozen=True)
class MemoryCost:
    """Bytes: `always` + B * (`second` * d + `square` * d^2) for B clips of d seconds."""

    always: float
    second: float
    square: float

    def peak(self, batch_size: int, seconds: float) -> float:
        return self.always + batch_size * (self.second * seconds + self.square * seconds**2)

    def largest(self, seconds: float, memory: float) -> int:
        """The most clips of this length that fit."""
        one = self.second * seconds + self.square * seconds**2
        return _MOST if one <= 0 else max(_NONE, min(_MOST, math.floor((memory - self.always) / one)))

    def batch_duration(self, memory: float) -> tuple[float, float | None]:
        """`batch_duration` that fits, and the `quadratic_duration` by which a batch of any lengths then fits."""
        if self.second <= 0:
            return math.inf, None
        return (memory - self.always) / self.second, self.second / self.square if self.square > 0 else None


def fit_memory(outcomes: Sequence[Outcome]) -> MemoryCost:
    """The costs closest to what was measured, none of them negative, moved up so that no measurement is above."""
    measured = [outcome for outcome in outcomes if outcome.fits]
    clips = np.array([outcome.trial.batch_size for outcome in measured], dtype=float)
    seconds = np.array([outcome.trial.seconds for outcome in measured])
    peaks = np.array([outcome.peak for outcome in measured], dtype=float)
    terms = np.stack([np.ones_like(clips), clips * seconds, clips * seconds**2], axis=1)
    several = len(set(seconds.tolist())) > 1  # of one length alone, nobody can tell a second's cost from its square's
    costs = np.zeros(3)
    used = [0, 1, 2] if several else [0, 1]
    costs[used] = _non_negative(terms[:, used], peaks)
    costs[0] += max(0.0, float((peaks - terms @ costs).max()))
    return MemoryCost(*costs.tolist())


def _non_negative(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least squares of the relative error, leaving out one term after the other that would be negative."""
    used = list(range(terms.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(terms[:, used] / values[:, None], np.ones_like(values), rcond=None)
        if len(used) == 1 or found.min() >= 0:
            costs = np.zeros(terms.shape[1])
            costs[used] = np.maximum(found, 0.0)
            return costs
        used.pop(int(found.argmin()))
