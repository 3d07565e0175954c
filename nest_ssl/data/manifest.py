"""JSON-lines manifests as columns: one utterance a line, a million lines in seconds and about 100 bytes each."""

from __future__ import annotations

import codecs
import json
import logging
import math
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import itemgetter
from reprlib import repr as short_repr
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from nest_ssl.data.file_kinds import not_text
from nest_ssl.data.loading.shared_arrays import SharedArray
from nest_ssl.data.paths import resolve_path
from nest_ssl.data.times import Seconds, wrong_time
from nest_ssl.errors import ManifestError
from nest_ssl.regular_file import open_regular

log = logging.getLogger(__name__)

_BYTES_AT_ONCE = 2**16
_LONGEST_LINE = 2**28  # bytes: 256 MB, for texts of whole books; what has no end of line is no manifest
_BETWEEN_CHANNEL_FILES = "\0"  # an entry may name several files, one for each channel
_END_OF_LINE = "\n"
_INSIDE = ("dataset", "datasets", "sets", "utterances", "manifest")  # where data sets keep their manifests
_NUMBERS = ("duration", "offset", "orig_sample_rate", "shard_id")


@dataclass(frozen=True)
class ManifestEntry:
    """What one line says: which part of which file. `line` is where it says so, as `manifest:line`."""

    audio_file: str | list[str]
    duration: Seconds | None
    offset: Seconds
    line: str
    whole_file: bool = True  # no offset was given: the line is about all of the file


class Row(NamedTuple):
    """The fields of one line that matter here; NaN where it does not say."""

    path: str
    duration: Seconds
    offset: Seconds
    shard: float = math.nan  # the number of a tar file

    def entry(self, file: str, number: int) -> ManifestEntry:
        """The same as line `number` of a manifest, with its audio looked up on the disk."""
        folder = os.path.dirname(file)  # noqa: PTH120
        paths = [resolve_path(name, folder) for name in self.path.split(_BETWEEN_CHANNEL_FILES)]
        whole_file = math.isnan(self.offset)
        return ManifestEntry(
            audio_file=paths[0] if len(paths) == 1 else paths,
            duration=None if math.isnan(self.duration) else self.duration,
            offset=0.0 if whole_file else self.offset,
            line=f"{file}:{number}",
            whole_file=whole_file,
        )


class Manifest(Sequence[ManifestEntry]):
    """The entries of one or more manifest files in their order.

    Kept as a few flat arrays rather than as an object a line: small, shared by worker processes, and not copied page
    by page when forked ones touch reference counts. Paths are looked up on the disk when an entry is asked for, not a
    million times at the start.
    """

    def __init__(self, columns: _Columns) -> None:
        self._durations = SharedArray(np.frombuffer(columns.durations))
        self._offsets = SharedArray(np.frombuffer(columns.offsets))
        self._shards = SharedArray(np.frombuffer(columns.shards))
        self._paths = SharedArray(np.frombuffer(columns.paths, dtype=np.uint8))
        self._path_ends = SharedArray(np.frombuffer(columns.path_ends, dtype=np.int64))
        self._lines = SharedArray(np.frombuffer(columns.lines, dtype=np.int64))
        self._files = columns.files
        self._file_ends = columns.file_ends

    def __len__(self) -> int:
        return len(self.durations)

    def __getitem__(self, index: int) -> ManifestEntry:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = Row(self.path(index), float(self.durations[index]), float(self._offsets.values[index]))
        return row.entry(self.file_of(index), int(self._lines.values[index]))

    @property
    def files(self) -> list[str]:
        """The manifest files that were read."""
        return self._files

    def file_of(self, index: int) -> str:
        """The manifest file that an entry comes from."""
        return self._files[bisect_right(self._file_ends, index)]

    def line(self, index: int) -> str:
        """Where an entry is written, as `manifest:line`."""
        return f"{self.file_of(index)}:{self._lines.values[index]}"

    def path(self, index: int) -> str:
        """What the manifest says, without looking it up on the disk."""
        start = self._path_ends.values[index - 1] if index else 0
        return self._paths.values[start : self._path_ends.values[index]].tobytes().decode("utf-8", "surrogatepass")

    def path_bytes(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """The paths of some entries in one piece, as UTF-8, and where each of them ends in it."""
        first = int(self._path_ends.values[start - 1]) if start else 0
        ends = self._path_ends.values[start:end]
        return self._paths.values[first : int(ends[-1]) if len(ends) else first], ends - first

    @property
    def durations(self) -> np.ndarray:
        """Seconds, NaN where the manifest does not say."""
        return self._durations.values

    @property
    def offsets(self) -> np.ndarray:
        """Seconds, NaN where the manifest does not say: the line is about all of the file."""
        return self._offsets.values

    @property
    def shards(self) -> np.ndarray:
        """Numbers of tar files, NaN where the manifest does not say."""
        return self._shards.values

    @property
    def hours(self) -> float:
        """Total length of the entries that say how long they are."""
        return float(np.nansum(self.durations)) / 3600


def load_manifest(
    paths: Sequence[str],
    *,
    min_duration: Seconds | None = None,
    max_duration: Seconds | None = None,
    key: str = "manifest_filepath",
    skip_bad_lines: bool = False,
) -> Manifest:
    """Read manifests and keep the entries within the duration limits; entries without a duration are kept.

    `key` is the configuration key that named the files, for the messages. A line that is no entry is an error, unless
    somebody else reports such lines.
    """
    shortest = 0.0 if min_duration is None else min_duration
    longest = math.inf if max_duration is None else max_duration
    columns = _Columns()
    too_short = too_long = 0
    for name in paths:
        file = resolve_path(name)
        for first, block in line_blocks(file, _BYTES_AT_ONCE, key):
            rows = _parse_block(file, first, block, skip_bad_lines)
            short, long = rows.durations < shortest, rows.durations > longest
            if short.any() or long.any():
                too_short += np.count_nonzero(short)
                too_long += np.count_nonzero(long)
                rows = rows.only(~(short | long))
            columns.extend(rows)
        columns.end_file(file)
    where = ", ".join(paths)
    dropped = f"dropped {too_short} shorter than {shortest:g} s, {too_long} longer than {longest:g} s"
    filtered = too_short or too_long
    if not columns.lines:
        raise ManifestError(f"{key}: {where}: nothing to read: {dropped if filtered else 'has no entries'}")
    manifest = Manifest(columns)
    log.info("%s: %d entries, %.2f hours%s", where, len(manifest), manifest.hours, f"; {dropped}" if filtered else "")
    return manifest


def manifests_in(dataset: Any) -> Iterator[Manifest]:
    """Yield all manifests inside a data set, whatever is wrapped around them."""
    if isinstance(dataset, Manifest):
        yield dataset
    elif isinstance(dataset, list | tuple):
        for one in dataset:
            yield from manifests_in(one)
    else:
        for name in _INSIDE:
            yield from manifests_in(getattr(dataset, name, ()))


def fingerprint(text: str) -> int:
    """64 bits, the same in every process, which Python's own hash is not."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def line_blocks(file: str, size: int, key: str = "manifest_filepath") -> Iterator[tuple[int, bytes]]:
    """Whole lines of about `size` bytes in all, with the number of the first of them, up to the end of a file."""
    try:
        with open_regular(file) as content:
            number = 1
            while block := content.read(size):
                kind = not_text(block) if number == 1 else None
                if kind is not None:
                    raise ManifestError(f"{key}: {file!r} is {kind}; expected a manifest with one JSON object a line")
                block += _rest_of_line(content, file)
                yield number, block
                number += len(block.splitlines()) if b"\r" in block else block.count(b"\n")
    except OSError as error:
        reason = error.strerror or error
        raise ManifestError(f"{key}: {file!r}: {reason}; give the path of a JSON-lines manifest") from None


def _rest_of_line(content: BinaryIO, file: str) -> bytes:
    rest = content.readline(_LONGEST_LINE)
    if len(rest) == _LONGEST_LINE:
        raise ManifestError(f"{file}: has a line of more than {_LONGEST_LINE} bytes; expected one JSON object a line")
    return rest


def numbered_lines(first: int, block: bytes) -> list[tuple[int, bytes]]:
    """The lines of a block that are not blank, without what ends them; Windows and old Macs end lines otherwise."""
    block = block.removeprefix(codecs.BOM_UTF8) if first == 1 else block
    return [(number, line) for number, line in enumerate(block.splitlines(), start=first) if line.strip()]


def parse_rows(file: str, key: str) -> Iterator[tuple[int, Any]]:
    """(line number, JSON value) of every line that is not blank, for those who look at other fields."""
    for first, block in line_blocks(file, _BYTES_AT_ONCE, key):
        for number, line in numbered_lines(first, block):
            try:
                yield number, parse_json(line)
            except ValueError as error:
                raise ManifestError(f"{file}:{number}: {error}") from None


def parse_line(line: bytes) -> Row:
    """What one line says; other fields of NeMo's manifests play no part in pre-training. A ValueError tells why not."""
    return parse_value(parse_json(line))


def parse_json(line: bytes) -> Any:
    """The JSON value of one line. A ValueError tells why there is none."""
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot be read as UTF-8: {error.reason} at byte {error.start + 1}") from None
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"not JSON: {reason}; expected one object a line") from None


def parse_value(value: Any) -> Row:
    """The same of a line's JSON value."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    path = value["audio_filename"] if "audio_filename" in value else value.get("audio_filepath")
    names: list[Any] = path if isinstance(path, list) else [path]
    if not names or not all(isinstance(name, str) and name and "\0" not in name for name in names):
        raise ValueError(f"audio_filepath is {short_repr(path)}; expected the path of an audio file")
    duration, offset, rate, shard = map(value.get, _NUMBERS)
    for reason in (
        None if duration is None else wrong_time("duration", duration, zero=False),
        None if offset is None else wrong_time("offset", offset, zero=True),
    ):
        if reason is not None:
            raise ValueError(reason)
    if rate is not None and (type(rate) not in (int, float) or not 0 < rate < math.inf):
        raise ValueError(f"orig_sample_rate is {short_repr(rate)}; expected Hz > 0")
    if shard is not None and (type(shard) is not int or not 0 <= shard < 2**31):
        raise ValueError(f"shard_id is {short_repr(shard)}; expected the number of a tar file")
    return Row(
        _BETWEEN_CHANNEL_FILES.join(names),
        math.nan if duration is None else float(duration),
        math.nan if offset is None else float(offset),
        math.nan if shard is None else float(shard),
    )


class Rows(NamedTuple):
    """Some lines as columns."""

    paths: list[str]
    durations: np.ndarray
    offsets: np.ndarray
    shards: np.ndarray
    lines: np.ndarray  # their numbers

    def only(self, wanted: np.ndarray) -> Rows:
        paths = [path for path, is_wanted in zip(self.paths, wanted.tolist(), strict=True) if is_wanted]
        return Rows(paths, *(column[wanted] for column in self[1:]))


def _parse_block(file: str, first: int, block: bytes, skip_bad_lines: bool = False) -> Rows:
    """The lines of a block: all at once if they are of the usual kind, one by one if not, or to find a bad one."""
    values = usual_values(block)
    usual = None if values is None else usual_rows(first, values)
    if usual is not None:
        return usual
    numbers, rows = [], []
    for number, line in numbered_lines(first, block):
        try:
            rows.append(parse_line(line))
        except ValueError as error:
            if skip_bad_lines:
                continue
            raise ManifestError(f"{file}:{number}: {error}") from None
        numbers.append(number)
    paths = [row.path for row in rows]
    durations, offsets, shards = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 3).T
    return Rows(paths, durations, offsets, shards, np.array(numbers, dtype=np.int64))


def usual_values(block: bytes) -> list[dict[str, Any]] | None:
    """As `parse_json` for every line, in half the time; None if it is not certain that that would agree."""
    if block.count(b"\r") != block.count(b"\r\n"):  # to JSON it is white space, here it ends a line
        return None
    try:
        text = block.decode().removesuffix("\n")
        values = json.loads(f"[{text.replace(_END_OF_LINE, ',null,')}]")
    except (ValueError, RecursionError):
        return None
    rows, between = values[::2], values[1::2]  # not so if a line holds two values, or a value goes over two lines
    if len(between) != text.count("\n") or between.count(None) != len(between) or set(map(type, rows)) != {dict}:
        return None
    return rows


def usual_rows(first: int, rows: list[dict[str, Any]]) -> Rows | None:
    """As `parse_value` for every line from number `first` on; None if it is not certain that that would agree."""
    fields = set().union(*rows)
    if "audio_filename" in fields:
        return None
    try:
        paths = list(map(itemgetter("audio_filepath"), rows))
        numbers = [_usual_numbers(rows, name) if name in fields else None for name in _NUMBERS]
    except (KeyError, ValueError, OverflowError):
        return None
    if set(map(type, paths)) != {str} or "" in paths or "\0" in "".join(paths):
        return None
    durations, offsets, _, shards = (np.full(len(rows), math.nan) if some is None else some for some in numbers)
    return Rows(paths, durations, offsets, shards, np.arange(first, first + len(rows)))


def _usual_numbers(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """A field that all rows have, as finite numbers of which none is too small."""
    values = list(map(itemgetter(name), rows))
    if not set(map(type, values)) <= ({int} if name == "shard_id" else {int, float}):
        raise ValueError
    numbers = np.array(values, dtype=np.float64)
    least_is_zero, below = name in ("offset", "shard_id"), 2**31 if name == "shard_id" else math.inf
    if not ((numbers < below) & (numbers >= 0 if least_is_zero else numbers > 0)).all():
        raise ValueError
    return numbers


class _Columns:
    """Buffers that grow with the lines that are read."""

    def __init__(self) -> None:
        self.durations = array("d")
        self.offsets = array("d")
        self.shards = array("d")
        self.paths = bytearray()
        self.path_ends = array("q")
        self.lines = array("q")
        self.files: list[str] = []
        self.file_ends: list[int] = []

    def extend(self, rows: Rows) -> None:
        """Append entries of the file that `end_file` will name."""
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
        """Say that everything added since the last call came from this manifest file."""
        self.files.append(file)
        self.file_ends.append(len(self.lines))
