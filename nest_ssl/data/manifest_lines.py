"""Lines of JSON-lines manifests: read in blocks, decoded and checked, as single rows or as columns."""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from reprlib import repr as short_repr
from typing import Any, NamedTuple

import numpy as np

from nest_ssl.data.paths import resolve_path
from nest_ssl.errors import ManifestError
from nest_ssl.regular_file import open_regular

Seconds = float
_BYTES_AT_ONCE = 2**16
_LONGEST_LINE = 2**28  # bytes: 256 MB, for texts of whole books; what has no end of line is no manifest
_BETWEEN_CHANNEL_FILES = "\0"  # an entry may name several files, one for each channel
_END_OF_LINE = "\n"
_NUMBERS = ("duration", "offset", "shard_id")
# files that users gave instead of a manifest, by their first bytes
_MOST_LOOKED_AT = 1024
_KINDS = (
    (re.compile(rb"(RIFF|RIFX|RF64)....WAVE|riff.{12}|FORM....AIF[FC]", re.DOTALL), "an audio file"),
    (re.compile(rb"\.snd|caff\0|NIST_1A|fLaC|OggS|ID3"), "an audio file"),
    (re.compile(rb"....ftyp|\x1aE\xdf\xa3", re.DOTALL), "an audio or video file"),
    (re.compile(rb"\xff[\xe2-\xfd](?!\xff)"), "an audio file"),  # the frame of an MP3 file, or of AAC
    (re.compile(rb"\x1f\x8b"), "packed by gzip"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "packed by bzip2"),
    (re.compile(rb"\xfd7zXZ\0"), "packed by xz"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "packed by zstd"),
    (re.compile(rb"PK(\x03\x04|\x05\x06)"), "a zip archive"),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7-Zip archive"),
    (re.compile(rb"(?=.{0,256}\0).{257}ustar", re.DOTALL), "a tar file"),
    (re.compile(rb"\xff\xfe|\xfe\xff|[{\[]\0|\0[{\[]"), "text in UTF-16, not in UTF-8"),
    (re.compile(rb"[^{\n]*\0"), "a binary file"),
)


@dataclass(frozen=True)
class ManifestEntry:
    """The part of an audio file that one manifest line names; `line` is the place of that line, as `manifest:line`."""

    audio_file: str | list[str]
    duration: Seconds | None
    offset: Seconds
    line: str
    whole_file: bool = True  # the line has no offset, so it means the whole file


class ManifestRow(NamedTuple):
    """The fields of one line that pre-training uses; NaN for an absent number."""

    path: str
    duration: Seconds
    offset: Seconds
    shard: float = math.nan  # the number of a tar file

    def entry(self, file: str, number: int) -> ManifestEntry:
        """Return the entry of line `number` of a manifest file, with its audio path resolved."""
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


def line_blocks(file: str, size: int = _BYTES_AT_ONCE, key: str = "manifest_filepath") -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each of about `size` bytes, with the number of its first line."""
    try:
        with open_regular(file) as content:
            number = 1
            while block := content.read(size):
                kind = not_text(block) if number == 1 else None
                if kind is not None:
                    raise ManifestError(f"{key}: {file!r} is {kind}; expected a manifest with one JSON object a line")
                block += (rest := content.readline(_LONGEST_LINE))
                if len(rest) == _LONGEST_LINE:
                    raise ManifestError(
                        f"{file}: has a line of more than {_LONGEST_LINE} bytes; expected one JSON object a line"
                    )
                yield number, block
                number += len(block.splitlines()) if b"\r" in block else block.count(b"\n")
    except OSError as error:
        reason = error.strerror or error
        raise ManifestError(f"{key}: {file!r}: {reason}; give the path of a JSON-lines manifest") from None


def not_text(start: bytes) -> str | None:
    """Return what a file with these first bytes is, as words after `is`; None for text."""
    looked_at = start[:_MOST_LOOKED_AT]
    return next((words for pattern, words in _KINDS if pattern.match(looked_at)), None)


def numbered_lines(first: int, block: bytes) -> list[tuple[int, bytes]]:
    """Return the non-blank lines of a block with their numbers; lines may end with LF, CRLF or CR."""
    block = block.removeprefix(codecs.BOM_UTF8) if first == 1 else block
    return [(number, line) for number, line in enumerate(block.splitlines(), start=first) if line.strip()]


def parse_rows(file: str, key: str) -> Iterator[tuple[int, Any]]:
    """Yield (line number, JSON value) of every non-blank line of a manifest."""
    for first, block in line_blocks(file, key=key):
        for number, line in numbered_lines(first, block):
            try:
                yield number, parse_json(line)
            except ValueError as error:
                raise ManifestError(f"{file}:{number}: {error}") from None


def parse_json(line: bytes) -> Any:
    """Return the JSON value of one line; raise ValueError with the reason if there is none."""
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot be read as UTF-8: {error.reason} at byte {error.start + 1}") from None
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"not JSON: {reason}; expected one object a line") from None


def parse_value(value: Any) -> ManifestRow:
    """Return the row of a line's JSON value; raise ValueError with the reason if it is no manifest entry."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    path = value["audio_filename"] if "audio_filename" in value else value.get("audio_filepath")
    names: list[Any] = path if isinstance(path, list) else [path]
    if not names or not all(isinstance(name, str) and name and "\0" not in name for name in names):
        raise ValueError(f"audio_filepath is {short_repr(path)}; expected the path of an audio file")
    duration, offset, shard = map(value.get, _NUMBERS)
    if duration is not None:
        check_time("duration", duration, zero=False)
    if offset is not None:
        check_time("offset", offset, zero=True)
    if shard is not None and (type(shard) is not int or not 0 <= shard < 2**31):
        raise ValueError(f"shard_id is {short_repr(shard)}; expected the number of a tar file")
    return ManifestRow(
        _BETWEEN_CHANNEL_FILES.join(names),
        math.nan if duration is None else float(duration),
        math.nan if offset is None else float(offset),
        math.nan if shard is None else float(shard),
    )


def check_time(name: str, value: Any, *, zero: bool) -> None:
    """Raise ValueError unless this is a number of seconds; `zero` allows 0.

    JSON has NaN, Infinity, true and integers of any size. Times longer than the file are cut where it is read.
    """
    in_range = type(value) in (int, float) and (value >= 0 if zero else value > 0) and value <= sys.float_info.max
    if not in_range:
        too_large = ", too large" if type(value) is int and value > 0 else ""
        raise ValueError(f"{name} is {short_repr(value)}{too_large}; expected seconds {'>=' if zero else '>'} 0")


class ManifestRows(NamedTuple):
    """Several lines as columns."""

    paths: list[str]
    durations: np.ndarray
    offsets: np.ndarray
    shards: np.ndarray
    lines: np.ndarray  # line numbers

    def where(self, wanted: np.ndarray) -> ManifestRows:
        """Return the rows for which the mask is true."""
        paths = [path for path, is_wanted in zip(self.paths, wanted.tolist(), strict=True) if is_wanted]
        return ManifestRows(paths, *(column[wanted] for column in self[1:]))


def parse_block(file: str, first: int, block: bytes, skip_bad_lines: bool = False) -> ManifestRows:
    """Return the rows of a block: all lines at once if possible, else one by one, which finds the bad line.

    A line that is no manifest entry raises ManifestError, or is left out with `skip_bad_lines`.
    """
    values = _decoded(block)
    found = None if values is None else _as_columns(first, values)
    if found is not None:
        return found
    numbers, rows = [], []
    for number, line in numbered_lines(first, block):
        try:
            rows.append(parse_value(parse_json(line)))
        except ValueError as error:
            if skip_bad_lines:
                continue
            raise ManifestError(f"{file}:{number}: {error}") from None
        numbers.append(number)
    paths = [row.path for row in rows]
    durations, offsets, shards = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 3).T
    return ManifestRows(paths, durations, offsets, shards, np.array(numbers, dtype=np.int64))


def _decoded(block: bytes) -> list[dict[str, Any]] | None:
    """Decode all lines by one JSON call, in half the time; None if `parse_json` line by line might differ."""
    if block.count(b"\r") != block.count(b"\r\n"):  # JSON takes a CR for white space; in a manifest it ends a line
        return None
    try:
        text = block.decode().removesuffix(_END_OF_LINE)
        values = json.loads(f"[{text.replace(_END_OF_LINE, ',null,')}]")
    except (ValueError, RecursionError):
        return None
    rows, between = values[::2], values[1::2]  # unless a line holds two values, or a value spans two lines
    one_per_line = len(between) == between.count(None) == text.count(_END_OF_LINE)
    return rows if one_per_line and set(map(type, rows)) == {dict} else None


def _as_columns(first: int, rows: list[dict[str, Any]]) -> ManifestRows | None:
    """Return the rows of the lines from number `first` on; None if `parse_value` line by line might differ."""
    fields = set().union(*rows)
    if "audio_filename" in fields:
        return None
    try:
        paths = list(map(itemgetter("audio_filepath"), rows))
        numbers = [_numbers(rows, name) if name in fields else None for name in _NUMBERS]
    except (KeyError, ValueError, OverflowError):
        return None
    if set(map(type, paths)) != {str} or "" in paths or "\0" in "".join(paths):
        return None
    absent = np.full(len(rows), math.nan)
    durations, offsets, shards = (absent if column is None else column for column in numbers)
    return ManifestRows(paths, durations, offsets, shards, np.arange(first, first + len(rows)))


def _numbers(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return a number field that every row has; raise ValueError if a value is out of range."""
    values = list(map(itemgetter(name), rows))
    if not set(map(type, values)) <= ({int} if name == "shard_id" else {int, float}):
        raise ValueError
    numbers = np.array(values, dtype=np.float64)
    least_is_zero, below = name in ("offset", "shard_id"), 2**31 if name == "shard_id" else math.inf
    if not ((numbers < below) & (numbers >= 0 if least_is_zero else numbers > 0)).all():
        raise ValueError
    return numbers
