"""Parts of a noise file, and NeMo's test whether a part is used, mostly without reading the rejected ones.

NeMo tests the sign of a sum, which rejects half of all good parts, and nearly all parts of a file with a negative mean.
Parts are read one by one until as many samples were read as the file has. Then the whole file is summed once, and the
sums of its blocks are kept: from then on only parts that are used are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from nest_ssl.config.schema import Numerics
from nest_ssl.data.audio import AudioFile
from nest_ssl.data.audio.opening import as_frames
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.errors import AudioError

_LONGEST_WHOLE = 2**25  # samples: 64 MB, half an hour; longer files are never read as a whole
_FILES_REMEMBERED = 1024  # a minute of noise takes 15 kB
_BLOCK = 256  # samples; a sum of that many 16-bit integers fits 32 bits
_LARGEST_EXACT = 2.0**24  # up to here float32 holds every integer

Read = Callable[[int, int], np.ndarray]  # (start, stop) -> samples


@dataclass(frozen=True)
class NoisePart:
    """One part of a noise file: `sound` is positive if it is used, 0 if it is silent."""

    sound: int
    file: AudioFile
    start: int = 0  # sample
    stop: int = 0
    samples: np.ndarray | None = None  # None: not read yet

    def read(self) -> np.ndarray:
        """Return the samples (S), float32 or 16-bit integers."""
        return self.file.integers(self.start, self.stop - self.start) if self.samples is None else self.samples


@dataclass
class _Remembered:
    """How many samples of a file were read for sums, and the sums of its blocks once the whole file was read."""

    samples_read: int = 0
    sums: RunningSums | None = None


class NoiseParts:
    """The parts of one file; `sound` is the sign of the sum (`exact`), or 1 unless all samples are zero (`fast`)."""

    def __init__(self, file: AudioFile, sample_rate: int, numerics: Numerics) -> None:
        self.file = file
        self.sample_rate = sample_rate
        self.numerics = numerics
        is_summed = numerics == "exact" and file.is_16_bit(sample_rate)
        self._remembered = _remembered(file.path, *_version(file.path)) if is_summed else None

    def at(self, offset: Seconds, duration: Seconds | None) -> NoisePart:
        if duration is None or self._remembered is None:
            return self._part(self.file.segment(self.sample_rate, offset=offset, duration=duration).samples)
        start = as_frames(offset, self.sample_rate)
        stop = start + as_frames(duration, self.sample_rate)
        sums = self._sums(self._remembered)
        if sums is not None and stop <= sums.length:
            return NoisePart(sums.sign(self._read, start, stop), self.file, start, stop)
        samples = self._read(start, stop)
        self._remembered.samples_read += len(samples)
        return self._part(samples)

    def _part(self, samples: np.ndarray) -> NoisePart:
        if self.numerics == "fast":
            return NoisePart(int(samples.any()), self.file, samples=samples)
        sign = RunningSums(samples).sign(lambda start, stop: samples[start:stop])
        return NoisePart(sign, self.file, samples=samples)

    def _sums(self, remembered: _Remembered) -> RunningSums | None:
        """Return the sums of the whole file, as soon as reading it costs no more than the parts did."""
        if remembered.sums is None and self.file.frames <= min(remembered.samples_read, _LONGEST_WHOLE):
            remembered.samples_read = 0
            with suppress(AudioError):  # damaged where no part has been read
                remembered.sums = RunningSums(self.file.integers())
        return remembered.sums

    def _read(self, start: int, stop: int) -> np.ndarray:
        return self.file.integers(start, stop - start)


def _version(path: str) -> tuple[int, int]:
    """Return a value that changes when the file does."""
    status = Path(path).stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=_FILES_REMEMBERED)
def _remembered(path: str, modified: int, size: int) -> _Remembered:
    return _Remembered()


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
