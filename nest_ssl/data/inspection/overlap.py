"""Find utterances that are in both the training and the validation set, from the columns of manifests.

A validation loss over such utterances measures memorisation. Audio is not opened. Files are first compared by the end
of their names; only the few matching lines of a million need their folders resolved on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nest_ssl.data.manifest import Manifest
from nest_ssl.data.paths import real_name, resolve_path
from nest_ssl.shell import as_typed

_MARGIN_MS = 50  # at both ends of a part: neighbouring parts may overlap by rounding, or share a breath
_TIME_BITS = 38  # milliseconds of 8 years; files are numbered in the bits above
_LAST_MS = 2**_TIME_BITS - 1
_TAIL = 16  # bytes at the end of a file's name
_LINES_AT_ONCE = 2**17


@dataclass(frozen=True)
class Overlap:
    """How many lines of a validation set share audio with the training set, with one example."""

    lines: int
    of: int  # lines of the validation set
    validation_line: str  # manifest:line
    training_line: str
    by_name: bool = False  # for members of tar files only names and durations are known

    def __str__(self) -> str:
        certainty = " (by name and duration, which is all that is known of tar files)" if self.by_name else ""
        return (
            f"{self.lines:,} of {self.of:,} validation utterances are also trained on{certainty}, such as "
            f"{self.validation_line} (trained on as {self.training_line})"
        )


def without_overlap(training: Sequence[str], validation: Sequence[str]) -> str:
    """Return the command that writes these manifests again, the validation set without training utterances."""
    return as_typed(["nest-ssl data check", *training, *validation, "--write-clean", "clean/"])


class AudioParts(NamedTuple):
    """Parts of audio files as columns: which file, and from when to when."""

    files: np.ndarray  # int64 numbers from 0 on
    starts: np.ndarray  # int64 milliseconds
    ends: np.ndarray

    @classmethod
    def of(cls, files: np.ndarray, offsets: np.ndarray, durations: np.ndarray) -> AudioParts:
        """Convert seconds; a part without offset begins with its file, one without duration ends with it."""
        starts = np.clip(1000 * np.nan_to_num(offsets), 0, _LAST_MS)
        ends = np.where(np.isnan(durations), _LAST_MS, starts + 1000 * np.nan_to_num(durations))
        margin = np.minimum(_MARGIN_MS, (ends - starts) / 4)
        starts, ends = (np.clip(np.rint(column), 0, _LAST_MS) for column in (starts + margin, ends - margin))
        return cls(files.astype(np.int64), starts.astype(np.int64), np.maximum(ends, starts + 1).astype(np.int64))


class Pairs(NamedTuple):
    """Lines that share audio: each line of one side, with one line of the other."""

    lines: np.ndarray
    others: np.ndarray


def shared_audio(parts: AudioParts, others: AudioParts) -> Pairs:
    """Return the parts that overlap any of the others in the same file, each with one that it overlaps."""
    order = np.lexsort((others.starts, others.files))
    numbered = others.files[order] << _TIME_BITS
    starts = numbered | others.starts[order]
    latest_end = np.maximum.accumulate(numbered | others.ends[order])  # larger file numbers give larger keys
    own = parts.files << _TIME_BITS
    last_before = np.searchsorted(starts, own | parts.ends) - 1  # begins before this part ends
    found = np.flatnonzero(last_before >= 0)
    ends = latest_end[last_before[found]]
    overlaps = ends > (own | parts.starts)[found]
    found, ends = found[overlaps], ends[overlaps]
    return Pairs(found, order[np.searchsorted(latest_end, ends)])


def find_overlap(training: Sequence[Manifest], validation: Sequence[Manifest]) -> Overlap | None:
    """Return the overlap of a validation set with the training set; None if there is none."""
    total = sum(map(len, validation))
    for manifest in validation:
        twin = next((other for other in training if _is_same(manifest, other)), None)
        if twin is not None and len(validation) == 1:  # the same manifest: all of its lines
            return Overlap(total, total, manifest.line(0), twin.line(0), by_name=_in_tar(manifest))
    every = [_tails(manifest, *block) for manifest in validation for block in _blocks(manifest)]
    tails, names = np.unique(np.concatenate(every)), _FileNumbers()
    train = _Candidates.of(training, tails, names)
    val = _Candidates.of(validation, np.unique(train.tails), names) if len(train.tails) else train
    pairs = shared_audio(val.parts, train.parts)
    if not len(pairs.lines):
        return None
    first, other = int(pairs.lines[0]), int(pairs.others[0])
    by_name = any(map(_in_tar, (*training, *validation)))
    return Overlap(len(pairs.lines), total, val.line(first), train.line(other), by_name)


class _Candidates(NamedTuple):
    """The lines of manifests whose file names end like some of the other side."""

    manifests: Sequence[Manifest]
    which: np.ndarray  # manifest
    lines: np.ndarray  # index in it
    tails: np.ndarray
    parts: AudioParts

    @classmethod
    def of(cls, manifests: Sequence[Manifest], tails: np.ndarray, names: _FileNumbers) -> _Candidates:
        columns: list[list[np.ndarray]] = [[np.empty(0)] for _ in range(6)]
        which, lines, kept, files, offsets, durations = columns
        for number, manifest in enumerate(manifests):
            for start, end in _blocks(manifest):
                own = _tails(manifest, start, end)
                found = np.flatnonzero(np.isin(own, tails))
                kept.append(own[found])
                found += start
                lines.append(found)
                which.append(np.full(len(found), number))
                files.append(names.of(manifest, found))
                in_tar = ~np.isnan(manifest.shards[found])  # members of tar files are parts already cut out
                offsets.append(np.where(in_tar, np.nan, manifest.offsets[found]))
                durations.append(manifest.durations[found])
        parts = AudioParts.of(*map(np.concatenate, (files, offsets, durations)))
        tail = np.concatenate([column.astype(np.uint64) for column in kept])
        return cls(manifests, np.concatenate(which).astype(int), np.concatenate(lines).astype(int), tail, parts)

    def line(self, index: int) -> str:
        return self.manifests[self.which[index]].line(int(self.lines[index]))


class _FileNumbers:
    """Numbers for files, the same for all paths of a file; each folder is resolved once."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._folders: dict[tuple[str, str], str] = {}

    def of(self, manifest: Manifest, lines: np.ndarray) -> np.ndarray:
        numbers, in_tar = self._numbers, ~np.isnan(manifest.shards[lines])
        keys = (self._key(manifest, int(line), tar) for line, tar in zip(lines, in_tar.tolist(), strict=True))
        return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), dtype=np.int64, count=len(lines))

    def _key(self, manifest: Manifest, line: int, in_tar: bool) -> object:
        path = manifest.path(line).partition("\0")[0]  # of several channel files, the first
        if in_tar:
            return path.rpartition("/")[2], float(manifest.durations[line])
        folder, name = os.path.split(path)
        beside = os.path.dirname(manifest.file_of(line))  # noqa: PTH120
        place = self._folders.get((beside, folder))
        if place is None:  # files of one folder resolve to the same folder
            place = os.path.dirname(real_name(resolve_path(path, beside)))  # noqa: PTH120
            self._folders[beside, folder] = place
        return f"{place}/{os.path.normcase(name)}"


def _blocks(manifest: Manifest) -> Iterator[tuple[int, int]]:
    for start in range(0, len(manifest), _LINES_AT_ONCE):
        yield start, min(start + _LINES_AT_ONCE, len(manifest))


def _tails(manifest: Manifest, start: int, end: int) -> np.ndarray:
    """Return 64 bits for each line: a hash of the last bytes of its lower-case file name."""
    content, ends = manifest.path_bytes(start, end)
    content = np.concatenate((np.full(_TAIL, ord("/"), np.uint8), content))
    backwards = content[(ends + _TAIL - 1)[:, None] - np.arange(_TAIL)]  # (lines, TAIL), the last byte first
    folder = (backwards == ord("/")) | (backwards == ord("\\"))
    # the bytes before a line's path are those of the previous line; they are not part of its name
    lengths = np.diff(ends, prepend=0)
    folder |= np.arange(_TAIL) >= lengths[:, None]
    name = np.where(np.logical_or.accumulate(folder, axis=1), 0, backwards | 0x20)
    low, high = name.astype(np.uint8).view(np.uint64).T
    return low * np.uint64(0x9E3779B97F4A7C15) ^ high


def _in_tar(manifest: Manifest) -> bool:
    return not bool(np.isnan(manifest.shards).all())


def _is_same(manifest: Manifest, other: Manifest) -> bool:
    """Return whether both were read from the same files with the same limits."""
    names = [[os.path.realpath(file) for file in one.files] for one in (manifest, other)]
    return names[0] == names[1] and len(manifest) == len(other)
