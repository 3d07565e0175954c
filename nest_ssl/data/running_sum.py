"""The sign of a float32 sum over samples, without making the sum: NeMo's test for noise that is worth mixing in."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

_BLOCK = 256  # samples; a sum of that many 16-bit integers fits 32 bits
_LARGEST_EXACT = 2.0**24  # up to here float32 holds every integer


class RunningSums:
    """Signs of the sums of any parts of a signal (S), float32 or 16-bit integers, from the sums of its blocks.

    Meant is the sum from left to right, rounded to float32 after each sample, as Python's `sum` makes it (NumPy's own
    order rounds differently). It differs from the true sum by at most n eps max|S_k|, S_k the true sums on the way.
    The sums of blocks bound those at a fraction of the cost; only where that leaves the sign open is the sum made.
    Integers have the sign of the floats they stand for, as scaling by a power of two changes no rounding.
    """

    def __init__(self, samples: np.ndarray) -> None:
        self.samples = samples
        is_integer = samples.dtype == np.int16
        blocks = samples[: len(samples) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
        sums = blocks.sum(axis=1, dtype=np.int32 if is_integer else np.float64)
        self._at_block = np.concatenate(([0.0], np.cumsum(sums, dtype=np.float64)))
        self._is_integer = is_integer

    def sign(self, start: int = 0, stop: int | None = None) -> int:
        """1, 0 or -1 for the samples from `start` to before `stop`."""
        part = self.samples[start:stop]
        stop = start + len(part)
        first, last = -(-start // _BLOCK), stop // _BLOCK  # the blocks that lie within
        rounding = len(part) * float(np.finfo(np.float32).eps)
        if first < last and rounding < 1:
            head = self._sum(start, first * _BLOCK)
            sums = self._at_block[first : last + 1] + (head - self._at_block[first])
            total = float(sums[-1]) + self._sum(last * _BLOCK, stop)
            # inside a block a sum is off those at its ends by no more than the peaks could make it
            largest = max(float(sums.max()), -float(sums.min())) + _BLOCK * self._peak
            is_exact = self._is_integer and largest <= _LARGEST_EXACT
            if is_exact or abs(total) > rounding * largest:
                return (total > 0) - (total < 0)
        return int(np.sign(np.add.accumulate(part, dtype=np.float32)[-1])) if len(part) else 0

    def _sum(self, start: int, stop: int) -> float:
        return math.fsum(self.samples[start:stop].tolist())

    @cached_property
    def _peak(self) -> float:
        if self._is_integer:
            return 2.0**15
        return max(float(self.samples.max()), -float(self.samples.min()))
