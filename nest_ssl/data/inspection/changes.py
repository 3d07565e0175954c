"""Find what changed in a data set since a checkpoint was written: removed, added and moved lines, by name.

A checkpoint holds fingerprints. The digests of all lines (8 bytes each, and up to `_MOST_NAMES` names) are in a file of
the run's folder, named after the fingerprints and written once for each state of the data.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from nest_ssl.atomic import atomic_write
from nest_ssl.data.inspection.fingerprint import DataSet, Fingerprint
from nest_ssl.errors import one_line

FOLDER = "data_lines"  # of the run's folder
_MOST_NAMES = 200_000
_LONGEST_NAME = 4096  # bytes
_SHOWN = 3  # names in a message


@dataclass(frozen=True)
class StoredLines:
    """The lines of a data set when a checkpoint was written."""

    digests: np.ndarray
    names: Sequence[str] | None = None  # None: too many to keep

    def name(self, index: int) -> str:
        return f"utterance {index + 1}" if self.names is None else self.names[index]


@dataclass(frozen=True)
class DataChange:
    """How a data set differs from that of the checkpoint; `what` is the description."""

    what: str
    same_order: bool = False  # of the same utterances
    nothing_in_common: bool = False


def compare(old: Fingerprint, new: Fingerprint, stored: StoredLines | None, now: DataSet) -> DataChange | None:
    """Return what changed, or None; `stored` is None if the file with the lines is missing."""
    if old == new:
        return None
    if old.files != new.files:
        return _changed_files(old.files, new.files)
    count = f"{old.utterances} -> {new.utterances} utterances"
    if old.lines == new.lines:
        return DataChange(f"the same {new.utterances} utterances in the same order under other paths", same_order=True)
    if not old.utterances or not new.utterances:
        return DataChange(count)
    if stored is None:
        return DataChange(f"{count}, other lines or another order (which lines is not known: {FOLDER} is missing)")
    change = _changed_lines(stored, now)
    if change.nothing_in_common and old.lengths == new.lengths and _lengths_differ(now):
        what = f"the same {new.utterances} durations in the same order under other names"
        return DataChange(what, same_order=True)
    return DataChange(f"{count}: {change.what}", nothing_in_common=change.nothing_in_common)


def write_lines(sets: Mapping[str, DataSet], fingerprints: Mapping[str, Fingerprint], folder: Path) -> None:
    """Write the lines of these sets to the run's folder, unless the file exists."""
    path = lines_file(fingerprints, folder)
    if path.exists():
        return
    arrays: dict[str, np.ndarray] = {}
    for key, data in sets.items():
        arrays[f"{key} lines"] = data.lines
        if 0 < fingerprints[key].utterances <= _MOST_NAMES:
            names = "\n".join(data.path(index) for index in range(fingerprints[key].utterances))
            packed = zlib.compress(names.encode("utf-8", "surrogatepass"), 1)
            arrays[f"{key} names"] = np.frombuffer(packed, np.uint8)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_lines(key: str, fingerprints: Mapping[str, Fingerprint], folders: Sequence[Path]) -> StoredLines | None:
    """Return the stored lines of one set, from the first of these run folders that has them."""
    for folder in folders:
        with contextlib.suppress(Exception):  # a damaged file can raise anything; only names are lost
            path = lines_file(fingerprints, folder)
            if not _is_stored_as_it_is(path):
                continue
            with np.load(path, allow_pickle=False) as file:
                digests = file[f"{key} lines"]
                packed = file[f"{key} names"].tobytes() if f"{key} names" in file else None
            if digests.dtype != np.uint64 or digests.shape != (fingerprints[key].utterances,):
                continue
            if packed is None:
                return StoredLines(digests)
            text = zlib.decompressobj().decompress(packed, len(digests) * _LONGEST_NAME)
            names = text.decode("utf-8", "surrogatepass").split("\n")
            return StoredLines(digests, names if len(names) == len(digests) else None)
    return None


def lines_file(fingerprints: Mapping[str, Fingerprint], folder: Path) -> Path:
    """Return the path of the file with the lines, named after the data, so that a checkpoint finds its own."""
    texts = [f"{key} {fingerprints[key].paths} {fingerprints[key].lines}" for key in sorted(fingerprints)]
    return folder / FOLDER / f"{blake2b(' '.join(texts).encode(), digest_size=8).hexdigest()}.npz"


def _is_stored_as_it_is(path: Path) -> bool:
    """Return whether the file is an uncompressed archive, which cannot expand to a larger size."""
    if not path.is_file():
        return False
    with zipfile.ZipFile(path) as archive:
        return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def _changed_files(old: Mapping[str, str], new: Mapping[str, str]) -> DataChange:
    """Return the change of files that are read during training; their lines are unknown."""
    removed = [name for name in old if name not in new]
    added = [name for name in new if name not in old]
    other = [name for name in new if name in old and new[name] != old[name]]
    kinds = {"removed": removed, "added": added, "changed": other}
    texts = [f"{len(of)} file(s) {kind} ({_named(range(len(of)), of.__getitem__)})" for kind, of in kinds.items() if of]
    return DataChange(", ".join(texts) or "files in another order")


def _changed_lines(stored: StoredLines, now: DataSet) -> DataChange:
    """Return removed, added and moved lines; duplicates count once."""
    digests = now.lines
    stayed, known = np.isin(stored.digests, digests), np.isin(digests, stored.digests)
    removed, added = np.flatnonzero(~stayed), np.flatnonzero(~known)
    before, after = stored.digests[stayed], np.flatnonzero(known)
    moved = _moved(before, digests[after])
    texts = []
    if len(removed):
        texts.append(f"{len(removed)} removed ({_named(removed, stored.name)})")
    if len(added):
        texts.append(f"{len(added)} added ({_named(added, now.path)})")
    if len(moved):
        texts.append(f"{len(moved)} in another place ({_named(after[moved], now.path)})")
    return DataChange(", ".join(texts) or "lines repeated or left out", nothing_in_common=not stayed.any())


def _moved(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return positions in `after` of the fewest lines without which both have the same order."""
    if np.array_equal(before, after):
        return np.empty(0, np.int64)
    if len(after) > _MOST_NAMES:  # all lines at another position
        shorter = min(len(before), len(after))
        return np.flatnonzero(before[:shorter] != after[:shorter])
    place = {line: index for index, line in enumerate(before.tolist())}
    return np.array(_out_of_order([place[line] for line in after.tolist()]), np.int64)


def _out_of_order(numbers: Sequence[int]) -> list[int]:
    """Return the positions outside the longest non-descending subsequence."""
    lowest: list[int] = []  # the lowest number that ends a subsequence of each length
    ends: list[int] = []  # and its position
    former = [-1] * len(numbers)
    for position, number in enumerate(numbers):
        length = bisect_right(lowest, number)
        former[position] = ends[length - 1] if length else -1
        if length == len(lowest):
            lowest.append(number)
            ends.append(position)
        else:
            lowest[length], ends[length] = number, position
    in_order = set()
    position = ends[-1] if ends else -1
    while position >= 0:
        in_order.add(position)
        position = former[position]
    return [position for position in range(len(numbers)) if position not in in_order]


def _lengths_differ(data: DataSet) -> bool:
    """Return whether durations distinguish utterances; those of clips of one length do not."""
    durations = np.concatenate([manifest.durations for manifest in data.manifests])
    return len(np.unique(durations)) > len(durations) / 2


def _named(positions: Sequence[int] | np.ndarray, name: Callable[[int], str]) -> str:
    """Return the names at the first positions, and how many more there are."""
    names = [one_line(name(int(position))) for position in positions[:_SHOWN]]
    return ", ".join(names) + (f" and {len(positions) - _SHOWN} more" if len(positions) > _SHOWN else "")
