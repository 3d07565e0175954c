"""Statistics of manifests: durations, loudness, silence, and the hours of each value of their fields.

`nest-ssl data check` reads the audio, so both commands find the same problems. A few numbers of every line are kept, so
that ten million lines fit into memory.
"""

from __future__ import annotations

import dataclasses
import math
import os
from array import array
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nest_ssl.apps.datatools.check import Findings, Observer, Progress, check_manifests
from nest_ssl.apps.datatools.check_lines import CheckedAudio, CheckedLine, Rules, categories, parse_or_problem
from nest_ssl.apps.datatools.manifest_files import manifest_file
from nest_ssl.apps.datatools.split import named_from
from nest_ssl.apps.datatools.stats_advice import Advice, advise
from nest_ssl.data.audio import ChannelSelector
from nest_ssl.data.inspection.overlap import Overlap, find_overlap
from nest_ssl.data.manifest import load_manifest
from nest_ssl.data.manifest_lines import Seconds, line_blocks, numbered_lines
from nest_ssl.data.problems import Problem
from nest_ssl.errors import ManifestError

Depth = Literal["samples", "headers", "manifest"]  # what is read
MOST_VALUES = 100_000  # of a field; one with more is not counted
_SPEAKER_FIELDS = ("speaker", "speaker_id", "spk", "spk_id", "client_id", "session", "recording")
_WIDTHS: tuple[Seconds, ...] = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300, 600, 3600)  # of a histogram's bins
_BINS = 20
_BITS = 2**64 - 1


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
        least, p5, median, p95, p99, most = map(float, np.percentile(finite, (0, 5, 50, 95, 99, 100)))
        return cls(len(finite), least, p5, median, float(finite.mean()), p95, p99, most)


@dataclass(frozen=True)
class Histogram:
    """The number of durations in each bin; bins are equally wide from 0 s on, and bin 20 has no upper end."""

    width: Seconds
    counts: tuple[int, ...]

    @classmethod
    def of(cls, durations: Sequence[float] | np.ndarray) -> Histogram | None:
        """Return a histogram with round edges in which 99 % of the durations are below bin 20, if possible."""
        finite = _finite(durations)
        if not len(finite):
            return None
        most = np.percentile(finite, 99)
        width = next((width for width in _WIDTHS if most < _BINS * width), _WIDTHS[-1])
        return cls(width, tuple(np.bincount(np.minimum(finite // width, _BINS).astype(int)).tolist()))


@dataclass(frozen=True)
class Share:
    """One value of a field, such as a sample rate or a speaker."""

    value: str | int
    lines: int
    hours: float


@dataclass(frozen=True)
class Stats:
    """The results of `nest-ssl data stats`."""

    depth: Depth
    lines: int
    entries: int
    files: int
    hours: float
    without_duration: int  # entries with unknown length or unusable audio
    in_tar: int  # entries whose audio is in tar files
    duration: Spread | None
    duration_histogram: Histogram | None
    loudness: Spread | None  # dBFS; of files whose samples were read, and are not all 0
    silence: Spread | None  # share of each of these files, and of those with zeros only
    full_scale: Spread | None  # share of the samples of each file
    sample_rates: tuple[Share, ...]  # the most hours first
    formats: tuple[Share, ...]
    fields: dict[str, tuple[Share, ...]]  # those whose values repeat, unlike names of utterances
    problems: Findings
    advice: Advice | None
    overlap: Overlap | None  # of the validation set with these manifests

    @property
    def group_field(self) -> str | None:
        """The field that names several speakers or recordings, which a split must not divide."""
        return next((name for name in _SPEAKER_FIELDS if len(self.fields.get(name, ())) > 1), None)

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        others = dataclasses.asdict(dataclasses.replace(self, problems=Findings()))
        overrides = [] if self.advice is None else self.advice.overrides
        return others | {"problems": self.problems.as_dict(), "overrides": overrides}


def describe(
    manifests: Sequence[str],
    depth: Depth = "samples",
    *,
    validation: Sequence[str] = (),
    batch_size: int = 8,
    channel_selector: ChannelSelector = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Stats:
    """Read every line, and compute the statistics of the valid ones.

    The advice is compared with random batches of `batch_size`.
    """
    columns = _Columns()
    if depth == "manifest":
        findings = _read_lines(manifests, columns.add, progress)
    else:
        ignored = frozenset({"overlap"})  # all manifests are for training
        rules = Rules(channel_selector=channel_selector, quick=depth == "headers", ignored=ignored, describe=True)
        findings = check_manifests(manifests, rules, workers=workers, progress=progress, observe=columns.add)
    if not columns.durations:
        bad = findings.examples.get("bad_line")
        reason = f"; {bad[0].message}" if bad else ""
        raise ManifestError(f"{', '.join(manifests)}: has no entries{reason}")
    seconds = np.asarray(columns.seconds)
    return Stats(
        depth=depth,
        lines=findings.lines,
        entries=len(seconds),
        files=len(np.unique(np.asarray(columns.files))),
        hours=float(np.nansum(seconds)) / 3600,
        without_duration=int(np.isnan(seconds).sum()),
        in_tar=columns.in_tar,
        duration=Spread.of(seconds),
        duration_histogram=Histogram.of(seconds),
        loudness=Spread.of(columns.rms),
        silence=Spread.of(columns.silence),
        full_scale=Spread.of(columns.clipped),
        sample_rates=columns.sample_rates.shares(),
        formats=columns.formats.shares(),
        fields={name: tally.shares() for name, tally in sorted(columns.fields.items()) if tally.repeats()},
        problems=findings,
        advice=advise(np.asarray(columns.durations), batch_size, in_tar=columns.in_tar > 0),
        overlap=_overlap(manifests, validation) if validation else None,
    )


class _Tally:
    """The lines and the seconds of each value of a field."""

    def __init__(self) -> None:
        self.lines: defaultdict[Any, int] = defaultdict(int)
        self.seconds: defaultdict[Any, Seconds] = defaultdict(float)

    def add(self, value: Hashable, seconds: Seconds) -> None:
        if len(self.lines) <= MOST_VALUES:
            self.lines[value] += 1
            self.seconds[value] += seconds

    def repeats(self) -> bool:
        """Return whether values repeat, and are few enough to be counted."""
        return len(self.lines) <= min(MOST_VALUES, max(1, sum(self.lines.values()) // 2))

    def shares(self) -> tuple[Share, ...]:
        """Return the values, the most hours first."""
        shares = (Share(value, lines, self.seconds[value] / 3600) for value, lines in self.lines.items())
        return tuple(sorted(shares, key=lambda share: (-share.hours, -share.lines, str(share.value))))


class _Columns:
    """The numbers of every valid line."""

    def __init__(self) -> None:
        self.seconds = array("d")  # of audio; NaN if unknown or unusable
        self.durations = array("d")  # durations in the manifest, NaN if there is none
        self.files = array("Q")  # fingerprints
        self.in_tar = 0
        self.rms, self.clipped, self.silence = array("f"), array("f"), array("f")  # of lines whose samples were read
        self.sample_rates, self.formats = _Tally(), _Tally()
        self.fields: defaultdict[str, _Tally] = defaultdict(_Tally)

    def add(self, line: CheckedLine) -> None:
        """Add a line; one that is no manifest entry is skipped."""
        audio, row = line.audio, line.row
        if row is None:
            return
        seconds = audio.seconds or math.nan  # usable audio has samples
        self.seconds.append(seconds)
        self.durations.append(row.duration)
        self.files.append(line.file)
        self.in_tar += not math.isnan(row.shard)
        known = 0.0 if math.isnan(seconds) else seconds
        if audio.header is not None:
            sample_rate, format_ = audio.header
            self.sample_rates.add(sample_rate, known)
            self.formats.add(format_, known)
        if audio.loudness is not None:
            self.rms.append(audio.loudness.rms)
            self.clipped.append(audio.loudness.clipped)
            self.silence.append(audio.loudness.silence)
        for name, text in (line.categories or {}).items():
            self.fields[name].add(text, known)


def _read_lines(manifests: Sequence[str], observe: Observer, progress: Progress | None) -> Findings:
    """Read manifests without audio; the only problems that this finds are invalid lines."""
    files = list(map(manifest_file, manifests))
    findings, done, total = Findings(), 0, sum(Path(file).stat().st_size for file in files)
    for file in files:
        here = os.path.abspath(file)  # noqa: PTH100 - links are not followed
        for first, block in line_blocks(file, key="manifest"):
            for number, line in numbered_lines(first, block):
                parsed = parse_or_problem(file, number, line)
                if isinstance(parsed, Problem):
                    findings.add_line(0.0, None, [parsed])
                    continue
                findings.lines += 1
                value, row = parsed
                name = hash(named_from(here, row.path)) & _BITS
                observe(CheckedLine(number, CheckedAudio(seconds=row.duration), row, 0, name, categories(value)))
            done += len(block)
            if progress is not None:
                progress(done, total, findings)
    return findings


def _overlap(manifests: Sequence[str], validation: Sequence[str]) -> Overlap | None:
    sides = (load_manifest(names, key="manifest", skip_bad_lines=True) for names in (manifests, validation))
    return find_overlap(*([side] for side in sides))


def _finite(values: Sequence[float] | np.ndarray) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[np.isfinite(numbers)]
