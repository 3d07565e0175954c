"""JSON-lines manifests as columns: one utterance a line, a million lines in seconds and about 100 bytes each."""

from __future__ import annotations

import json
import logging
import math
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from nest_ssl.data.paths import resolve_path
from nest_ssl.errors import ManifestError

log = logging.getLogger(__name__)

Seconds = float
_LINES_AT_ONCE = 1000
_BETWEEN_CHANNEL_FILES = "\0"  # an entry may name several files, one for each channel


@dataclass(frozen=True)
class ManifestEntry:
    """What one line says: which part of which file. `line` is where it says so, as `manifest:line`."""

    audio_file: str | list[str]
    duration: Seconds | None
    offset: Seconds
    line: str


class Manifest(Sequence[ManifestEntry]):
    """The entries of one or more manifest files in their order.

    Kept as a few flat buffers rather than as an object a line: small, quick to send to a worker process, and not
    copied page by page when forked workers touch reference counts. Paths are looked up on the disk when an entry is
    asked for, not a million times at the start.
    """

    def __init__(self) -> None:
        self.durations = array("d")  # seconds, NaN where the manifest does not say
        self.offsets = array("d")
        self._paths = bytearray()
        self._path_ends = array("q", [0])
        self._lines = array("q")
        self._files: list[str] = []
        self._file_ends: list[int] = []

    def __len__(self) -> int:
        return len(self.durations)

    def __getitem__(self, index: int) -> ManifestEntry:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        file = self._files[bisect_right(self._file_ends, index)]
        folder = os.path.dirname(file)  # noqa: PTH120
        text = self._paths[self._path_ends[index] : self._path_ends[index + 1]].decode("utf-8", "surrogatepass")
        paths = [resolve_path(name, folder) for name in text.split(_BETWEEN_CHANNEL_FILES)]
        duration = self.durations[index]
        return ManifestEntry(
            audio_file=paths[0] if len(paths) == 1 else paths,
            duration=None if math.isnan(duration) else duration,
            offset=self.offsets[index],
            line=f"{file}:{self._lines[index]}",
        )

    def add(self, path: str, duration: Seconds, offset: Seconds, line_number: int) -> None:
        """Append an entry to the file that `end_file` will name."""
        self._paths += path.encode("utf-8", "surrogatepass")
        self._path_ends.append(len(self._paths))
        self.durations.append(duration)
        self.offsets.append(offset)
        self._lines.append(line_number)

    def end_file(self, file: str) -> None:
        """Say that everything added since the last call came from this manifest file."""
        self._files.append(file)
        self._file_ends.append(len(self))

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
) -> Manifest:
    """Read manifests and keep the entries within the duration limits; entries without a duration are kept.

    `key` is the configuration key that named the files, for the messages.
    """
    manifest = Manifest()
    shortest = 0.0 if min_duration is None else min_duration
    longest = math.inf if max_duration is None else max_duration
    too_short = too_long = 0
    for name in paths:
        file = resolve_path(name)
        for line_number, row in _rows(file, key):
            try:
                path, duration, offset = _parse(row)
            except (ValueError, OverflowError) as error:
                raise ManifestError(f"{file}:{line_number}: {error}") from None
            if duration < shortest:
                too_short += 1
            elif duration > longest:
                too_long += 1
            else:
                manifest.add(path, duration, offset, line_number)
        manifest.end_file(file)
    where = ", ".join(paths)
    dropped = f"dropped {too_short} shorter than {shortest:g} s, {too_long} longer than {longest:g} s"
    filtered = too_short or too_long
    if not len(manifest):
        raise ManifestError(f"{key}: {where}: nothing to read: {dropped if filtered else 'has no entries'}")
    log.info("%s: %d entries, %.2f hours%s", where, len(manifest), manifest.hours, f"; {dropped}" if filtered else "")
    return manifest


def _rows(file: str, key: str) -> Iterator[tuple[int, Any]]:
    """(line number, parsed JSON) of every line that is not blank."""
    try:
        with open(file, encoding="utf-8-sig") as lines:  # noqa: PTH123
            numbered = ((number, line) for number, line in enumerate(lines, start=1) if not line.isspace())
            while chunk := list(islice(numbered, _LINES_AT_ONCE)):
                yield from zip((number for number, _ in chunk), _parse_lines(file, chunk), strict=True)
    except FileNotFoundError:
        raise ManifestError(f"{key}: {file!r} does not exist; give the path of a JSON-lines manifest") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{key}: {file!r} cannot be read: {error}") from None


def _parse_lines(file: str, chunk: list[tuple[int, str]]) -> list[Any]:
    """One JSON value a line. Lines are parsed together, three times quicker; one by one to find the bad one."""
    with suppress(ValueError, RecursionError):
        values = json.loads("[" + ",".join(line for _, line in chunk) + "]")
        if len(values) == len(chunk):
            return values
    return [_parse_line(file, number, line) for number, line in chunk]


def _parse_line(file: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ManifestError(f"{file}:{number}: not JSON: {reason}; expected one object a line") from None


def _parse(row: Any) -> tuple[str, Seconds, Seconds]:
    """(path, duration or NaN, offset) of one line; other fields of NeMo's manifests play no part in pre-training."""
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, found {type(row).__name__}")
    path = row["audio_filename"] if "audio_filename" in row else row.get("audio_filepath")
    if isinstance(path, list) and path and all(isinstance(name, str) and name for name in path):
        path = _BETWEEN_CHANNEL_FILES.join(path)
    if not isinstance(path, str) or not path:
        raise ValueError(f"audio_filepath is {path!r}; expected the path of an audio file")
    duration = row.get("duration")
    if duration is None:
        duration = math.nan
    elif type(duration) not in (int, float) or not 0 < duration < math.inf:
        raise ValueError(f"duration is {duration!r}; expected seconds > 0")
    offset = row.get("offset")
    if offset is None:
        offset = 0.0
    elif type(offset) not in (int, float) or not 0 <= offset < math.inf:
        raise ValueError(f"offset is {offset!r}; expected seconds >= 0")
    rate = row.get("orig_sample_rate")
    if rate is not None and (type(rate) not in (int, float) or not 0 < rate < math.inf):
        raise ValueError(f"orig_sample_rate is {rate!r}; expected Hz > 0")
    return path, float(duration), float(offset)
