"""Statistics of manifests, computed from the numbers of their lines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nest_ssl.apps.datatools.check import Findings
from nest_ssl.apps.datatools.split import split_names
from nest_ssl.apps.datatools.stats_advice import Advice, advise
from nest_ssl.apps.datatools.stats_reading import Columns, Depth, Tally
from nest_ssl.apps.datatools.train_command import split_words, train_words
from nest_ssl.data.inspection.overlap import Overlap, find_overlap
from nest_ssl.data.manifest import load_manifest
from nest_ssl.shell import as_typed

_SPEAKER_FIELDS = ("speaker", "speaker_id", "spk", "spk_id", "client_id", "session", "recording")
_PERCENTILES = (5, 50, 95, 99)
_BINS = 20  # of a histogram at most, or one more
_NICE_WIDTHS = (1.0, 2.0, 5.0, 10.0)
_LEAST_WIDTH = 1e-6
_OUTSIDE = 0.5  # per cent of the values at each end that may be outside a histogram


@dataclass(frozen=True)
class Spread:
    """The distribution of some numbers."""

    count: int
    min: float
    p5: float
    median: float
    mean: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Spread | None:
        """Return the distribution of the finite values; None if there are none."""
        finite = _finite(values)
        if not len(finite):
            return None
        p5, median, p95, p99 = map(float, np.percentile(finite, _PERCENTILES))
        return cls(*(len(finite), float(finite.min()), p5, median, float(finite.mean()), p95, p99, float(finite.max())))


@dataclass(frozen=True)
class Histogram:
    """How many values are between one edge and the next, and how many outside all edges."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    below: int = 0
    above: int = 0

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Histogram | None:
        """Return a histogram with round edges; a few distant values are counted outside it."""
        finite = _finite(values)
        if not len(finite):
            return None
        low, high = np.percentile(finite, (_OUTSIDE, 100 - _OUTSIDE))
        width = _nice_width(max((high - low) / _BINS or abs(low) / _BINS, _LEAST_WIDTH))
        first, last = math.floor(low / width), math.floor(high / width) + 1
        edges = tuple(round(number * width, 9) for number in range(first, last + 1))
        counts, _ = np.histogram(finite, edges)
        below, above = np.count_nonzero(finite < edges[0]), np.count_nonzero(finite > edges[-1])
        return cls(edges, tuple(counts.tolist()), int(below), int(above))


@dataclass(frozen=True)
class Share:
    """One value of a field, such as a rate, a format or a speaker."""

    value: str | int
    lines: int
    hours: float


@dataclass(frozen=True)
class FieldStats:
    """A field of the manifest with its values; `values` is None if there are too many to count."""

    name: str
    lines: int | None  # that have it
    values: int | None
    shares: tuple[Share, ...]  # the most hours first

    @property
    def groups(self) -> bool:
        """Whether values repeat, unlike names of utterances."""
        return self.values is not None and self.lines is not None and self.values <= max(1, self.lines // 2)


@dataclass(frozen=True)
class Group:
    """The durations of the lines that share a value."""

    value: str | None  # None: lines without that field
    hours: float
    duration: Spread


@dataclass(frozen=True)
class Sound:
    """Loudness and silence; decibels relative to full scale."""

    rms: Spread | None  # None: every sample is 0
    rms_histogram: Histogram | None
    peak: Spread | None
    files_at_full_scale: int  # with any sample that is
    samples_at_full_scale: float  # share of all
    silence: Spread  # share of each file
    silence_histogram: Histogram
    silence_of_all: float  # share of all audio
    digital_silence: int  # files whose samples are all 0


@dataclass(frozen=True)
class Stats:
    """Everything that `nest-ssl data stats` reports."""

    manifests: tuple[str, ...]
    depth: Depth
    lines: int
    entries: int
    files: int
    hours: float
    without_duration: int  # entries with unknown length or unusable audio
    in_tar: int  # entries whose audio is in tar files
    duration: Spread | None
    duration_histogram: Histogram | None
    sound: Sound | None
    sample_rates: tuple[Share, ...]
    channels: tuple[Share, ...]
    formats: tuple[Share, ...]
    fields: tuple[FieldStats, ...]
    by: str | None
    groups: tuple[Group, ...]
    problems: Findings
    advice: Advice | None
    validation: tuple[str, ...] = ()  # manifests
    noise: tuple[str, ...] = ()
    channel_selector: str | int | None = None
    overlap: Overlap | None = None  # of the validation set with these manifests

    @property
    def split_words(self) -> list[str]:
        """The command that splits off a validation set if there is none; by speaker if a field names it."""
        if self.validation or self.advice is None or self.in_tar:
            return []
        groups = {field.name for field in self.fields if field.groups and (field.values or 0) > 1}
        return split_words(self._once, next((name for name in _SPEAKER_FIELDS if name in groups), None))

    @property
    def _once(self) -> list[str]:
        return list(dict.fromkeys(self.manifests))

    @property
    def train_words(self) -> list[str]:
        """The command that trains with the advice, on the manifests that `split_words` makes, if any."""
        if self.advice is None or not self.advice.overrides or self.in_tar:
            return []
        train, val = list(self.manifests), list(self.validation)
        if self.split_words:
            train, val = ([str(pair[side]) for pair in split_names(self._once)] for side in (0, 1))
        return train_words(train, val, self.noise, self.advice.overrides, self.channel_selector)

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        values = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        found = self.problems.as_dict()
        values["problems"] = {name: found[name] for name in ("faulty_lines", "problems", "examples", "narrow_band")}
        values["overrides"] = self.train_words[1:]
        values["commands"] = [as_typed(words) for words in (self.split_words, self.train_words) if words]
        return values


def summarize(
    manifests: Sequence[str],
    depth: Depth,
    columns: Columns,
    findings: Findings,
    batch_size: int = 8,
    *,
    validation: Sequence[str] = (),
    noise: Sequence[str] = (),
    channel_selector: str | int | None = None,
) -> Stats:
    """Compute the statistics; `batch_size` is that of the random batches that the advice is compared with.

    `validation` and `noise` are the other manifests of a training run.
    """
    seconds = np.asarray(columns.seconds)
    return Stats(
        manifests=tuple(manifests),
        depth=depth,
        lines=findings.lines,
        entries=len(seconds),
        files=len(np.unique(np.asarray(columns.files))),
        hours=float(np.nansum(seconds)) / 3600,
        without_duration=int(np.isnan(seconds).sum()),
        in_tar=columns.in_tar,
        duration=Spread.of(seconds),
        duration_histogram=Histogram.of(seconds),
        sound=_sound(columns),
        sample_rates=_shares(columns.sample_rates),
        channels=_shares(columns.channels),
        formats=_shares(columns.formats),
        fields=tuple(_fields(columns)),
        by=columns.by,
        groups=tuple(_groups(columns, seconds)),
        problems=findings,
        advice=advise(np.asarray(columns.said), batch_size, in_tar=columns.in_tar > 0),
        validation=tuple(validation),
        noise=tuple(noise),
        channel_selector=channel_selector,
        overlap=_overlap(manifests, validation),
    )


def _overlap(manifests: Sequence[str], validation: Sequence[str]) -> Overlap | None:
    if not validation:
        return None
    sides = (load_manifest(names, key="manifest", skip_bad_lines=True) for names in (manifests, validation))
    return find_overlap(*([side] for side in sides))


def _sound(columns: Columns) -> Sound | None:
    if not columns.measured:
        return None
    seconds = np.asarray(columns.measured, dtype=np.float64)
    rms, clipped, silence = (np.asarray(column) for column in (columns.rms, columns.clipped, columns.silence))
    silence_spread, tenths = Spread.of(silence), tuple(number / 10 for number in range(11))
    assert silence_spread is not None  # shares are finite
    return Sound(
        rms=Spread.of(rms),
        rms_histogram=Histogram.of(rms),
        peak=Spread.of(np.asarray(columns.peak)),
        files_at_full_scale=int(np.count_nonzero(clipped)),
        samples_at_full_scale=float(np.average(clipped, weights=seconds)),
        silence=silence_spread,
        silence_histogram=Histogram(tenths, tuple(np.histogram(silence, tenths)[0].tolist())),
        silence_of_all=float(np.average(silence, weights=seconds)),
        digital_silence=int(np.count_nonzero(rms == -np.inf)),
    )


def _shares(tally: Tally) -> tuple[Share, ...]:
    return tuple(Share(value, lines, seconds / 3600) for value, lines, seconds in tally.by_seconds())


def _fields(columns: Columns) -> Iterator[FieldStats]:
    for name, tally in sorted(columns.fields.items()):
        if tally is None:
            yield FieldStats(name, None, None, ())
        elif tally.lines:
            shares = _shares(tally)
            yield FieldStats(name, sum(share.lines for share in shares), len(shares), shares)


def _groups(columns: Columns, seconds: np.ndarray) -> Iterator[Group]:
    """Yield the durations of each value, the most hours first."""
    if columns.by is None:
        return
    names = [*columns.group_numbers, None]  # -1 is the last
    numbers = np.asarray(columns.groups)
    order = np.argsort(numbers, kind="stable")
    present, starts = np.unique(numbers[order], return_index=True)
    groups = []
    for number, durations in zip(present, np.split(seconds[order], starts[1:]), strict=True):
        spread = Spread.of(durations)
        if spread is not None:
            groups.append(Group(names[number], float(np.nansum(durations)) / 3600, spread))
    yield from sorted(groups, key=lambda group: -group.hours)


def printable(text: str) -> str:
    """Return a value of a manifest without characters that move the cursor or cannot be encoded."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _finite(values: Sequence[float] | np.ndarray) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[np.isfinite(numbers)]


def _nice_width(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(nice * power for nice in _NICE_WIDTHS if nice * power >= least * (1 - 1e-9))


def _plain(value: Any) -> Any:
    """Return dataclasses as dictionaries."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
