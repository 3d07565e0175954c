"""What changed in a data set since a checkpoint was written: lines that were removed, added or moved, by name.

A checkpoint holds fingerprints; the digests of the single lines are in a file of the run's folder that is named after
them (eight bytes a line, and the names of up to `_MOST_NAMES` of them), written once for each state of the data.
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
    """The lines of a data set at an earlier time."""

    digests: np.ndarray
    names: Sequence[str] | None = None  # None: too many to keep

    def name(self, index: int) -> str:
        return f"utterance {index + 1}" if self.names is None else self.names[index]


@dataclass(frozen=True)
class DataChange:
    """How a data set differs from what it was; `what` says so in words."""

    what: str
    same_order: bool = False  # of the same utterances
    nothing_in_common: bool = False


def compare(old: Fingerprint, new: Fingerprint, stored: StoredLines | None, now: DataSet) -> DataChange | None:
    """What changed, or None. `stored` is None where the file with the lines is gone."""
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
    """Keep the lines of these sets in the run's folder, unless they are there already."""
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
    """The lines of one set as they were, from the first of these run folders that has them."""
    for folder in folders:
        with contextlib.suppress(Exception):  # of a file that is damaged, which can raise anything, only names are lost
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
    """Named after the data, so that a checkpoint finds the lines of its own time."""
    texts = [f"{key} {fingerprints[key].paths} {fingerprints[key].lines}" for key in sorted(fingerprints)]
    return folder / FOLDER / f"{blake2b(' '.join(texts).encode(), digest_size=8).hexdigest()}.npz"


def _is_stored_as_it_is(path: Path) -> bool:
    """Whether it is a file of ours, which unfolds to nothing larger than itself."""
    if not path.is_file():
        return False
    with zipfile.ZipFile(path) as archive:
        return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def _changed_files(old: Mapping[str, str], new: Mapping[str, str]) -> DataChange:
    """Of data that is read while training. Their lines are not known, nor whether they have any in common."""
    removed = [name for name in old if name not in new]
    added = [name for name in new if name not in old]
    other = [name for name in new if name in old and new[name] != old[name]]
    kinds = {"removed": removed, "added": added, "changed": other}
    texts = [f"{len(of)} file(s) {kind} ({_shown(len(of), of.__getitem__)})" for kind, of in kinds.items() if of]
    return DataChange(", ".join(texts) or "files in another order")


def _changed_lines(stored: StoredLines, now: DataSet) -> DataChange:
    """Removed, added and moved lines. One that is there twice counts as one that is there."""
    digests = now.lines
    stayed, known = np.isin(stored.digests, digests), np.isin(digests, stored.digests)
    removed, added = np.flatnonzero(~stayed), np.flatnonzero(~known)
    before, after = stored.digests[stayed], np.flatnonzero(known)
    moved = _moved(before, digests[after])
    texts = []
    if len(removed):
        texts.append(f"{len(removed)} removed ({_names(removed, stored.name)})")
    if len(added):
        texts.append(f"{len(added)} added ({_names(added, now.path)})")
    if len(moved):
        texts.append(f"{len(moved)} in another place ({_names(after[moved], now.path)})")
    return DataChange(", ".join(texts) or "lines repeated or left out", nothing_in_common=not stayed.any())


def _moved(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Positions in `after` of the lines that left their place: the fewest whose removal leaves both in one order."""
    if np.array_equal(before, after):
        return np.empty(0, np.int64)
    if len(after) > _MOST_NAMES:  # those at another position, without asking which of them moved
        shorter = min(len(before), len(after))
        return np.flatnonzero(before[:shorter] != after[:shorter])
    place = {line: index for index, line in enumerate(before.tolist())}
    return np.array(_out_of_order([place[line] for line in after.tolist()]), np.int64)


def _out_of_order(numbers: Sequence[int]) -> list[int]:
    """Positions that are not part of the longest non-descending subsequence."""
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
    """Whether durations tell utterances apart: those of clips that were cut to one length do not."""
    durations = np.concatenate([manifest.durations for manifest in data.manifests])
    return len(np.unique(durations)) > len(durations) / 2


def _shown(count: int, name: Callable[[int], str]) -> str:
    names = [one_line(name(number)) for number in range(min(count, _SHOWN))]
    return ", ".join(names) + (f" and {count - _SHOWN} more" if count > _SHOWN else "")


def _names(positions: np.ndarray, name: Callable[[int], str]) -> str:
    return _shown(len(positions), lambda number: name(int(positions[number])))
