"""JSON-lines manifests as columns: one utterance a line, a million lines in seconds and about 100 bytes each."""

from __future__ import annotations

import logging
import math
import os
import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from nest_ssl.compat import is_starting_a_process
from nest_ssl.data.manifest_lines import ManifestEntry, ManifestRow, ManifestRows, Seconds, line_blocks, parse_block
from nest_ssl.data.paths import resolve_path
from nest_ssl.errors import ManifestError

log = logging.getLogger(__name__)

_WORTH_A_FILE = 2**20  # bytes of an array
_WITHIN = ("dataset", "datasets", "sets", "buckets", "utterances")  # attributes with the parts of a dataset


def load_manifest(
    paths: Sequence[str],
    *,
    min_duration: Seconds | None = None,
    max_duration: Seconds | None = None,
    key: str = "manifest_filepath",
    skip_bad_lines: bool = False,
) -> Manifest:
    """Read manifests and keep the entries within the duration limits; entries without a duration are kept.

    `key` is the configuration key of the files, for messages. `skip_bad_lines` is for callers that report them.
    """
    shortest = 0.0 if min_duration is None else min_duration
    longest = math.inf if max_duration is None else max_duration
    columns = _Columns()
    too_short = too_long = 0
    for name in paths:
        file = resolve_path(name)
        for first, block in line_blocks(file, key=key):
            rows = parse_block(file, first, block, skip_bad_lines)
            short, long = rows.durations < shortest, rows.durations > longest
            if short.any() or long.any():
                too_short += np.count_nonzero(short)
                too_long += np.count_nonzero(long)
                rows = rows.where(~(short | long))
            columns.extend(rows)
        columns.end_file(file)
    where = ", ".join(paths)
    dropped = f"dropped {too_short} shorter than {shortest:g} s, {too_long} longer than {longest:g} s"
    filtered = too_short or too_long
    if not columns.lines:
        raise ManifestError(f"{key}: {where}: nothing to read: {dropped if filtered else 'has no entries'}")
    manifest = Manifest(columns)
    hours = np.nansum(manifest.durations) / 3600
    log.info("%s: %d entries, %.2f hours%s", where, len(manifest), hours, f"; {dropped}" if filtered else "")
    return manifest


def datasets_in(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that read utterances and noise themselves, however deeply a dataset wraps them."""
    if hasattr(dataset, "noise_data"):
        yield dataset
        return
    for name in _WITHIN:
        inner = getattr(dataset, name, ())
        for one in inner if isinstance(inner, list | tuple) else [inner]:
            yield from datasets_in(one)


def manifests_in(dataset: Any) -> list[Manifest]:
    """Return the manifests in a dataset, each once; lhotse's datasets have none."""
    return each_once(getattr(one, "manifest", None) for one in datasets_in(dataset))


def each_once(manifests: Iterable[Any]) -> list[Manifest]:
    """Remove duplicates, and what is no manifest: buckets are listed as often as their weight, sets share noise."""
    return list({id(one): one for one in manifests if isinstance(one, Manifest)}.values())


def line_of(manifests: Sequence[Manifest], index: int) -> tuple[Manifest, int]:
    """Return the manifest that holds an entry, and its index there; `index` counts through all manifests."""
    for manifest in manifests:
        if index < len(manifest):
            return manifest, index
        index -= len(manifest)
    raise IndexError(index)


def stable_hash(text: str) -> int:
    """Return 64 bits that are the same in every process, unlike Python's own hash."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class SharedArray:
    """A read-only array that workers share: forked workers inherit it, spawned workers map the same file.

    Pickled arrays would be copied into each process. Shared memory is not used: containers often have too little.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __reduce__(self) -> tuple[Any, ...]:
        if is_starting_a_process() and self.values.nbytes >= _WORTH_A_FILE:
            with suppress(OSError):  # no space for temporary files: pickle a copy
                return _mapped, (self._file,)
        return SharedArray, (self.values,)

    @cached_property
    def _file(self) -> str:
        """The file with the array: written for the first process, removed with the array or when this process ends."""
        descriptor, name = tempfile.mkstemp(prefix="nest_ssl-", suffix=".npy")
        weakref.finalize(self, _remove, name)
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, self.values)
        return name


def _mapped(name: str) -> SharedArray:
    return SharedArray(np.load(name, mmap_mode="r"))


def _remove(name: str) -> None:
    with suppress(OSError):  # Windows keeps a file that another process still maps
        os.unlink(name)  # noqa: PTH108


class Manifest(Sequence[ManifestEntry]):
    """The entries of one or more manifest files, in order.

    They are stored as a few flat arrays, not as an object per line: small, shared by workers, and not copied page by
    page when forked workers touch reference counts. Paths are resolved when an entry is read, not all at the start.
    """

    def __init__(self, columns: _Columns) -> None:
        self._durations = SharedArray(np.frombuffer(columns.durations))
        self._offsets = SharedArray(np.frombuffer(columns.offsets))
        self._shards = SharedArray(np.frombuffer(columns.shards))
        self._paths = SharedArray(np.frombuffer(columns.paths, dtype=np.uint8))
        self._path_ends = SharedArray(np.frombuffer(columns.path_ends, dtype=np.int64))
        self._lines = SharedArray(np.frombuffer(columns.lines, dtype=np.int64))
        self.files = columns.files
        self._file_ends = columns.file_ends

    def __len__(self) -> int:
        return len(self.durations)

    def __getitem__(self, index: int) -> ManifestEntry:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = ManifestRow(self.path(index), float(self.durations[index]), float(self._offsets.values[index]))
        return row.entry(self.file_of(index), int(self._lines.values[index]))

    def file_of(self, index: int) -> str:
        """Return the manifest file of an entry."""
        return self.files[bisect_right(self._file_ends, index)]

    def line(self, index: int) -> str:
        """Return the place of an entry, as `manifest:line`."""
        return f"{self.file_of(index)}:{self._lines.values[index]}"

    def path(self, index: int) -> str:
        """Return the audio path as it is written in the manifest, not resolved."""
        start = self._path_ends.values[index - 1] if index else 0
        return self._paths.values[start : self._path_ends.values[index]].tobytes().decode("utf-8", "surrogatepass")

    def path_bytes(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the paths of some entries joined as UTF-8 bytes, and the position where each of them ends."""
        first = int(self._path_ends.values[start - 1]) if start else 0
        ends = self._path_ends.values[start:end]
        return self._paths.values[first : int(ends[-1]) if len(ends) else first], ends - first

    @property
    def durations(self) -> np.ndarray:
        """Seconds; NaN for an entry without a duration."""
        return self._durations.values

    @property
    def offsets(self) -> np.ndarray:
        """Seconds; NaN for an entry without an offset, which means the whole file."""
        return self._offsets.values

    @property
    def shards(self) -> np.ndarray:
        """Numbers of tar files; NaN for an entry without `shard_id`."""
        return self._shards.values


class _Columns:
    """Growing buffers for the columns of a `Manifest`."""

    def __init__(self) -> None:
        self.durations = array("d")
        self.offsets = array("d")
        self.shards = array("d")
        self.paths = bytearray()
        self.path_ends = array("q")
        self.lines = array("q")
        self.files: list[str] = []
        self.file_ends: list[int] = []

    def extend(self, rows: ManifestRows) -> None:
        """Append entries of the file that the next `end_file` names."""
        text = "".join(rows.paths)
        encoded = rows.paths if text.isascii() else [path.encode("utf-8", "surrogatepass") for path in rows.paths]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        self.path_ends.frombytes((len(self.paths) + np.cumsum(lengths)).tobytes())
        self.paths += text.encode("utf-8", "surrogatepass")
        self.durations.frombytes(rows.durations.tobytes())
        self.offsets.frombytes(rows.offsets.tobytes())
        self.shards.frombytes(rows.shards.tobytes())
        self.lines.frombytes(rows.lines.astype(np.int64, copy=False).tobytes())

    def end_file(self, file: str) -> None:
        """Record that all entries since the last call came from this manifest file."""
        self.files.append(file)
        self.file_ends.append(len(self.lines))
