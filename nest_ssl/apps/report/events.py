"""The values that a run logged in TensorBoard's event files, all its starts as one history.

Records are read here because TensorBoard's reader computes every checksum in Python, which takes four fifths of its
time. A file that is being written may end with an incomplete record, which is ignored.
"""

from __future__ import annotations

import io
import math
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """All values of a run by their names in nest_ssl/training/loggers/build.py."""

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


def read_history(folders: Sequence[Path], root: Path | None = None) -> History:
    """Read the event files of these folders, all of which must be inside `root` if it is given.

    If a start repeats steps of an earlier one, the values of the later start are used.
    """
    paths = [path for folder in folders for path in folder.glob(EVENT_FILES)]
    read = (_read_file(path, root or path.parent) for path in paths)
    files = sorted(filter(None, read), key=lambda file: file[0].time)
    pieces: dict[str, list[Series]] = {}
    ends_before = np.inf
    for start, of_start in reversed(files):
        for tag, series in of_start.items():
            kept = series.only(series.steps < ends_before)
            if len(kept):
                pieces.setdefault(tag, []).insert(0, kept)
        if start.first_step is not None:
            ends_before = min(ends_before, start.first_step)
    return History({tag: _joined(pieces[tag]) for tag in sorted(pieces)}, [start for start, _ in files])


def _joined(pieces: Sequence[Series]) -> Series:
    columns = ((piece.steps, piece.values, piece.times) for piece in pieces)
    return Series(*map(np.concatenate, zip(*columns, strict=True)))


def _read_file(path: Path, root: Path) -> tuple[Start, dict[str, Series]] | None:
    """Read the scalars of one start's event file; None if it has no complete record."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    logged: dict[str, array[float]] = {}  # step, value and time of each value
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
            number = value.simple_value if abs(value.simple_value) <= _LARGEST_NUMBER else math.nan
            logged.setdefault(name_of(value.tag), array("d")).extend((event.step, number, event.wall_time))
    if began is None:
        return None
    series = {tag: _in_order(np.frombuffer(rows).reshape(-1, 3)) for tag, rows in logged.items()}
    first = min((int(of.steps[0]) for of in series.values()), default=None)
    last = max((int(of.steps[-1]) for of in series.values()), default=None)
    return Start(began, first, last), series


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


def _in_order(rows: np.ndarray) -> Series:
    """Sort rows of step, value and time by step; of several values of one step, keep the one that was written last."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    last_of_step = np.append(rows[1:, 0] != rows[:-1, 0], True)
    steps, values, times = rows[last_of_step].T
    return Series(steps.astype(np.int64), values, times)
