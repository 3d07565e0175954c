"""The sign of a sequential float32 sum, mostly without computing the sum: NeMo's test whether noise is used."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_BLOCK = 256  # samples; a sum of that many 16-bit integers fits 32 bits
_LARGEST_EXACT = 2.0**24  # up to here float32 holds every integer

Read = Callable[[int, int], np.ndarray]  # (start, stop) -> samples


class RunningSums:
    """Signs of the sums of any parts of a signal (S), float32 or 16-bit integers, from the sums of its blocks.

    The sum is defined from left to right, rounded to float32 after each sample, like Python's `sum` (NumPy's order
    rounds differently). It differs from the exact sum by at most n eps max|S_k|, with S_k the exact partial sums. Block
    sums bound these at a fraction of the cost; only if the bound does not decide the sign is the sum computed.
    16-bit integers give the sign of the floats they represent: scaling by a power of two changes no rounding.
    The samples are not kept; `sign` reads the few that it needs.
    """

    def __init__(self, samples: np.ndarray) -> None:
        self.length = len(samples)
        self._is_integer = samples.dtype == np.int16
        blocks = samples[: len(samples) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
        self._of_blocks = blocks.sum(axis=1, dtype=np.int32 if self._is_integer else np.float64)
        self._peak = _peak(samples)

    def sign(self, read: Read, start: int = 0, stop: int | None = None) -> int:
        """Return 1, 0 or -1: the sign of the sum from `start` up to, not including, `stop`."""
        stop = self.length if stop is None else min(stop, self.length)
        first, last = -(-start // _BLOCK), stop // _BLOCK  # the blocks that lie within
        rounding = (stop - start) * float(np.finfo(np.float32).eps)
        if first < last and rounding < 1:
            head, tail = _sum(read(start, first * _BLOCK)), _sum(read(last * _BLOCK, stop))
            sums = head + np.cumsum(self._of_blocks[first:last], dtype=np.float64)
            total = float(sums[-1]) + tail
            # within a block, a partial sum differs from those at its ends by at most a block of peaks
            largest = max(abs(head), float(sums.max()), -float(sums.min())) + _BLOCK * self._peak
            is_exact = self._is_integer and largest <= _LARGEST_EXACT
            if is_exact or abs(total) > rounding * largest:
                return (total > 0) - (total < 0)
        part = read(start, stop) if start < stop else ()
        return int(np.sign(np.add.accumulate(part, dtype=np.float32)[-1])) if len(part) else 0


def _sum(samples: np.ndarray) -> float:
    return math.fsum(samples.tolist())


def _peak(samples: np.ndarray) -> float:
    if samples.dtype == np.int16:
        return 2.0**15
    return max(float(samples.max()), -float(samples.min())) if len(samples) else 0.0
