"""Parts of a noise file, and NeMo's test whether a part is used, mostly without reading the rejected ones.

NeMo tests the sign of a sum, which rejects half of all good parts, and nearly all parts of a file with a negative mean.
Parts are read one by one until as many samples were read as the file has. Then the whole file is summed once, and the
sums of its blocks are kept: from then on only parts that are used are read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from nest_ssl.data.audio import AudioFile
from nest_ssl.data.audio.opening import as_frames
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.running_sum import RunningSums
from nest_ssl.errors import AudioError

_LONGEST_WHOLE = 2**25  # samples: 64 MB, half an hour; longer files are never read as a whole
_FILES_REMEMBERED = 1024  # a minute of noise takes 15 kB


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


class SummedParts:
    """The parts of one file; `sound` is the sign of a part's sum."""

    def __init__(self, file: AudioFile, sample_rate: int) -> None:
        self.file = file
        self.sample_rate = sample_rate
        self._remembered = _remembered(file.path, *_version(file.path)) if file.is_16_bit(sample_rate) else None

    def at(self, offset: Seconds, duration: Seconds | None) -> NoisePart:
        if duration is None or self._remembered is None:
            return self._summed(self.file.segment(self.sample_rate, offset=offset, duration=duration).samples)
        start = as_frames(offset, self.sample_rate)
        stop = start + as_frames(duration, self.sample_rate)
        sums = self._sums(self._remembered)
        if sums is not None and stop <= sums.length:
            return NoisePart(sums.sign(self._read, start, stop), self.file, start, stop)
        samples = self._read(start, stop)
        self._remembered.samples_read += len(samples)
        return self._summed(samples)

    def _summed(self, samples: np.ndarray) -> NoisePart:
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


class SoundingParts:
    """The parts of one file; `sound` is 0 if all samples are zero, else 1."""

    def __init__(self, file: AudioFile, sample_rate: int) -> None:
        self.file = file
        self.sample_rate = sample_rate

    def at(self, offset: Seconds, duration: Seconds | None) -> NoisePart:
        samples = self.file.segment(self.sample_rate, offset=offset, duration=duration).samples
        return NoisePart(int(samples.any()), self.file, samples=samples)


def _version(path: str) -> tuple[int, int]:
    """Return a value that changes when the file does."""
    status = Path(path).stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=_FILES_REMEMBERED)
def _remembered(path: str, modified: int, size: int) -> _Remembered:
    return _Remembered()
