"""Find utterances that are in both the training and the validation set, from the columns of manifests.

A validation loss over such utterances measures memorisation. Audio is not opened. Files are first compared by their
names; only the few matching lines of a million need their folders resolved on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nest_ssl.data.inspection.fingerprint import name_starts, text_digests
from nest_ssl.data.manifest import Manifest, line_of
from nest_ssl.data.paths import real_name, resolve_path
from nest_ssl.shell import as_typed

_MARGIN_MS = 50  # at both ends of a part: neighbouring parts may overlap by rounding, or share a breath
_TIME_BITS = 38  # milliseconds of 8 years; files are numbered in the bits above
_LAST_MS = 2**_TIME_BITS - 1
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
    for twin in training if len(validation) == 1 else ():
        if _is_same(validation[0], twin):  # all of its lines
            return Overlap(total, total, validation[0].line(0), twin.line(0), by_name=_in_tar(twin))
    train_names, val_names = _name_digests(training), _name_digests(validation)
    train_lines = np.flatnonzero(np.isin(train_names, val_names))
    val_lines = np.flatnonzero(np.isin(val_names, train_names[train_lines]))
    files = _FileNumbers()
    pairs = shared_audio(_parts(validation, val_lines, files), _parts(training, train_lines, files))
    if not len(pairs.lines):
        return None
    manifest, line = line_of(validation, int(val_lines[pairs.lines[0]]))
    other, its_line = line_of(training, int(train_lines[pairs.others[0]]))
    by_name = any(map(_in_tar, (*training, *validation)))
    return Overlap(len(pairs.lines), total, manifest.line(line), other.line(its_line), by_name)


def _parts(manifests: Sequence[Manifest], lines: np.ndarray, files: _FileNumbers) -> AudioParts:
    """Return the audio of some lines, which are counted through all manifests."""
    columns = ([one.offsets, one.durations, one.shards] for one in manifests)
    offsets, durations, shards = (np.concatenate(column)[lines] for column in zip(*columns, strict=True))
    in_tar = ~np.isnan(shards)  # members of tar files are parts already cut out
    places = (line_of(manifests, line) for line in lines.tolist())
    numbers = [files.of(manifest, line, tar) for (manifest, line), tar in zip(places, in_tar.tolist(), strict=True)]
    return AudioParts.of(np.array(numbers, dtype=np.int64), np.where(in_tar, np.nan, offsets), durations)


class _FileNumbers:
    """Numbers of files, the same for all paths of a file; each folder is resolved once."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._folders: dict[tuple[str, str], str] = {}

    def of(self, manifest: Manifest, line: int, in_tar: bool) -> int:
        return self._numbers.setdefault(self._key(manifest, line, in_tar), len(self._numbers))

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


def _name_digests(manifests: Sequence[Manifest]) -> np.ndarray:
    """Return 64 bits for each line: a hash of its file name, in which the case of letters does not count."""
    digests = []
    for manifest in manifests:
        for start in range(0, len(manifest), _LINES_AT_ONCE):
            text, ends = manifest.path_bytes(start, start + _LINES_AT_ONCE)
            digests.append(text_digests(text | 0x20, name_starts(text, ends, 1), ends))
    return np.concatenate(digests)


def _in_tar(manifest: Manifest) -> bool:
    return not bool(np.isnan(manifest.shards).all())


def _is_same(manifest: Manifest, other: Manifest) -> bool:
    """Return whether both were read from the same files with the same limits."""
    names = [[os.path.realpath(file) for file in one.files] for one in (manifest, other)]
    return names[0] == names[1] and len(manifest) == len(other)
