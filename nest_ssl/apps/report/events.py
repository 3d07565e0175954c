"""The values that a run logged in TensorBoard's event files, all its starts as one history.

Records are read here because TensorBoard's reader computes every checksum in Python, which takes four fifths of its
time. A file that is being written may end with an incomplete record, which is ignored.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nest_ssl.apps.report.foreign import open_inside
from nest_ssl.errors import NestError
from nest_ssl.training.loggers.build import name_of

EVENT_FILES = "events.out.tfevents.*"
_HEADER = struct.Struct("<QI")  # length of the record, checksum of that length
_CHECKSUM = 4  # bytes after the record
# What a run can have; a file from elsewhere may claim more.
LARGEST_WHOLE = 2**53  # steps, and other counts: exact as floating-point numbers
_LARGEST_FILE = 4 * 2**30  # bytes
_LARGEST_RECORD = 2**20  # bytes; larger ones hold pictures and sound
_MOST_NUMBERS = 20_000_000  # in one file
_LARGEST_NUMBER = 1e30  # beyond it, charts have no scale
_LATEST = 2.0**33  # seconds since 1970: the year 2242
_NOT_OF_A_STEP = ("hp_metric",)  # Lightning logs it at step 0 whenever a run starts


@dataclass(frozen=True)
class Series:
    """The values of one tag over strictly increasing steps; `times` are seconds since 1970."""

    steps: np.ndarray
    values: np.ndarray
    times: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def only(self, wanted: np.ndarray) -> Series:
        return Series(self.steps[wanted], self.values[wanted], self.times[wanted])

    @property
    def finite(self) -> Series:
        return self.only(np.isfinite(self.values))

    @property
    def last_finite(self) -> float | None:
        """The newest finite value; None if there is none."""
        values = self.finite.values
        return float(values[-1]) if len(values) else None


@dataclass(frozen=True)
class Start:
    """One start of a run: when it began, and its first and last logged step (None if it logged nothing)."""

    time: float
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True)
class History:
    """All values of a run by their names in nest_ssl/training/loggers/tags.py."""

    series: dict[str, Series]
    starts: list[Start]

    def get(self, tag: str) -> Series:
        """Return the values of a tag; an empty series if there are none."""
        return self.series.get(tag, Series(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)))

    @property
    def last_step(self) -> int | None:
        return max((int(of.steps[-1]) for of in self.series.values()), default=None)

    @property
    def last_time(self) -> float | None:
        """The time of the newest value, or of the newest start if that logged nothing."""
        times = [float(of.times[-1]) for of in self.series.values()] + [start.time for start in self.starts]
        return max(times, default=None)


class _File(NamedTuple):
    """The event file of one start."""

    start: Start
    series: dict[str, Series]


def read_history(folders: Sequence[Path], root: Path | None = None) -> History:
    """Read the event files of these folders, all of which must be inside `root` if it is given.

    If a start repeats steps of an earlier one, the values of the later start are used.
    """
    paths = [path for folder in folders for path in folder.glob(EVENT_FILES)]
    read = (_read_file(path, root or path.parent) for path in paths)
    files = sorted(filter(None, read), key=lambda file: file.start.time)
    pieces: dict[str, list[Series]] = {}
    ends_before = np.inf
    for file in reversed(files):
        for tag, series in file.series.items():
            kept = series.only(series.steps < ends_before)
            if len(kept):
                pieces.setdefault(tag, []).append(kept)
        if file.start.first_step is not None:
            ends_before = min(ends_before, file.start.first_step)
    joined = {tag: _joined(of[::-1]) for tag, of in sorted(pieces.items())}
    return History(joined, [file.start for file in files])


def _joined(pieces: Sequence[Series]) -> Series:
    return Series(
        np.concatenate([piece.steps for piece in pieces]),
        np.concatenate([piece.values for piece in pieces]),
        np.concatenate([piece.times for piece in pieces]),
    )


def _read_file(path: Path, root: Path) -> _File | None:
    """Read the scalars of an event file; None if it has no complete record."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    columns: dict[str, tuple[list[int], list[float], list[float]]] = {}
    began: float | None = None
    count = 0
    for record in _records(path, root):
        try:
            event = Event.FromString(record)
        except DecodeError:  # a damaged file: keep what came before
            break
        if not (0 <= event.wall_time <= _LATEST and 0 <= event.step <= LARGEST_WHOLE):  # NaN among them
            continue
        began = event.wall_time if began is None else began
        count += len(event.summary.value)
        if count > _MOST_NUMBERS:
            raise NestError(f"{path}: holds more than {_MOST_NUMBERS} numbers; it is not read")
        for value in event.summary.value:
            if not value.HasField("simple_value") or value.tag in _NOT_OF_A_STEP:
                continue
            steps, values, times = columns.setdefault(name_of(value.tag), ([], [], []))
            steps.append(event.step)
            values.append(value.simple_value if abs(value.simple_value) <= _LARGEST_NUMBER else math.nan)
            times.append(event.wall_time)
    if began is None:
        return None
    series = {tag: _in_order(*map(np.array, of)) for tag, of in columns.items()}
    first = min((int(of.steps[0]) for of in series.values()), default=None)
    last = max((int(of.steps[-1]) for of in series.values()), default=None)
    return _File(Start(began, first, last), series)


def _records(path: Path, root: Path) -> Iterator[bytes]:
    """Yield the complete records of an event file, except large ones, which hold pictures or sound."""
    with open_inside(path, root, _LARGEST_FILE) as file:
        end = file.seek(0, io.SEEK_END)
        place = 0
        while place + _HEADER.size <= end:
            file.seek(place)
            length, _ = _HEADER.unpack(file.read(_HEADER.size))
            place += _HEADER.size + length + _CHECKSUM
            if place > end:
                return
            if length <= _LARGEST_RECORD:
                yield file.read(length)


def _in_order(steps: np.ndarray, values: np.ndarray, times: np.ndarray) -> Series:
    """Sort by step; of several values of one step, keep the one that was written last."""
    steps = steps.astype(np.int64)
    order = np.argsort(steps, kind="stable")
    steps = steps[order]
    last_of_step = np.append(steps[1:] != steps[:-1], True)
    chosen = order[last_of_step]
    return Series(steps[last_of_step], values[chosen].astype(np.float64), times[chosen])
