"""Reading of manifests for statistics: a few numbers of every line, so that ten million lines fit into memory.

`nest-ssl data check` reads the audio, so both commands find the same problems. Without audio, whole blocks of lines are
parsed: a million lines in a few seconds.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nest_ssl.apps.datatools.check import Findings, Progress, check_manifests
from nest_ssl.apps.datatools.check_lines import CheckedLine, Rules, parse_or_problem
from nest_ssl.apps.datatools.line_facts import NOT_CATEGORIES, as_category
from nest_ssl.data.audio import ChannelSelector
from nest_ssl.data.manifest import Seconds
from nest_ssl.data.manifest_lines import decode_block, line_blocks, numbered_lines, rows_of_values
from nest_ssl.data.paths import resolve_path
from nest_ssl.data.problems import Problem
from nest_ssl.errors import ManifestError
from nest_ssl.regular_file import why_not_regular

Depth = Literal["samples", "headers", "manifest"]  # what is read
_BYTES_AT_ONCE = 2**16
_64_BITS = 2**64 - 1
MOST_VALUES = 100_000  # of a field; one with more is not remembered
_ABSENT = -1


class Tally:
    """The lines and the seconds of each value of a field."""

    def __init__(self) -> None:
        self.lines: dict[Any, int] = {}
        self.seconds: dict[Any, Seconds] = {}

    def add(self, value: Hashable, seconds: Seconds) -> None:
        self.lines[value] = self.lines.get(value, 0) + 1
        self.seconds[value] = self.seconds.get(value, 0.0) + seconds

    def by_seconds(self) -> list[tuple[Any, int, Seconds]]:
        """Return (value, lines, seconds), the most seconds first."""
        rows = [(value, lines, self.seconds[value]) for value, lines in self.lines.items()]
        return sorted(rows, key=lambda row: (-row[2], -row[1], str(row[0])))


class Columns:
    """The numbers of every line; `by` is a field whose value is also kept, for durations by its values."""

    def __init__(self, by: str | None = None) -> None:
        self.by = by
        self.seconds = array("d")  # of audio; NaN if unknown or unusable
        self.said = array("d")  # durations in the manifest, NaN if there is none
        self.files = array("Q")  # fingerprints
        self.in_tar = 0
        self.measured = array("f")  # seconds of every line whose samples were read; the next four are about those
        self.rms, self.peak, self.clipped, self.silence = (array("f") for _ in range(4))
        self.sample_rates, self.channels, self.formats = Tally(), Tally(), Tally()
        self.fields: dict[str, Tally | None] = {}  # None: too many values
        self.groups = array("i")  # the number of each line's value of `by`; -1 if it has none
        self.group_numbers: dict[str, int] = {}

    def add_line(self, line: CheckedLine) -> None:
        """Add a line whose audio was checked; invalid lines are skipped."""
        facts = line.facts
        if facts is None:
            return
        seconds = line.seconds or math.nan  # usable audio has samples
        self.seconds.append(seconds)
        self.said.append(line.said)
        self.files.append(line.file)
        self.in_tar += facts.in_tar
        known = 0.0 if math.isnan(seconds) else seconds
        if facts.header is not None:
            self.sample_rates.add(facts.header.sample_rate, known)
            self.channels.add(facts.header.channels, known)
            self.formats.add(facts.header.format, known)
        if facts.loudness is not None:
            self.measured.append(seconds)
            for column, level in zip((self.rms, self.peak, self.clipped, self.silence), facts.loudness, strict=True):
                column.append(level)
        for name, value in facts.categories.items():
            self._count(name, [value], [known])
        if self.by is not None:
            self._group([facts.categories.get(self.by)])

    def add_rows(self, values: Sequence[Mapping[str, Any]], durations: np.ndarray, files: Iterable[int]) -> None:
        """Add lines without their audio: their JSON values, durations and fingerprints of files."""
        self.seconds.frombytes(durations.tobytes())
        self.said.frombytes(durations.tobytes())
        self.files.extend(files)
        known = np.nan_to_num(durations).tolist()
        for name in set().union(*values) - NOT_CATEGORIES:
            column = [value.get(name) for value in values]
            if name == "shard_id":
                self.in_tar += sum(value is not None for value in column)
            self._count(name, map(as_category, column), known)
        if self.by is not None:
            self._group(as_category(value.get(self.by)) for value in values)

    def _count(self, name: str, values: Iterable[str | None], seconds: Iterable[Seconds]) -> None:
        tally = self.fields.setdefault(name, Tally())
        if tally is None:
            return
        for value, length in zip(values, seconds, strict=True):
            if value is not None:
                tally.add(value, length)
        if len(tally.lines) > MOST_VALUES:
            self.fields[name] = None

    def _group(self, values: Iterable[str | None]) -> None:
        numbers = self.group_numbers
        self.groups.extend(_ABSENT if value is None else numbers.setdefault(value, len(numbers)) for value in values)


def read_columns(
    manifests: Sequence[str],
    depth: Depth = "samples",
    *,
    by: str | None = None,
    channel_selector: ChannelSelector = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[Columns, Findings]:
    """Read the numbers of every valid line, and the problems of the lines."""
    columns = Columns(by)
    if depth == "manifest":
        findings = _read_manifests(manifests, columns, progress)
    else:
        rules = Rules(
            channel_selector=channel_selector,
            quick=depth == "headers",
            ignored=frozenset({"overlap"}),  # all manifests are for training
            facts=True,
        )
        findings = check_manifests(manifests, rules, workers=workers, progress=progress, observe=columns.add_line)
    if not columns.said:
        bad = findings.examples.get("bad_line")
        reason = f"; {bad[0].message}" if bad else ""
        raise ManifestError(f"{', '.join(manifests)}: has no entries{reason}")
    return columns, findings


def _read_manifests(manifests: Sequence[str], columns: Columns, progress: Progress | None) -> Findings:
    """Read manifests without audio; the only problems that this finds are invalid lines."""
    files = [resolve_path(name) for name in manifests]
    for name, file in zip(manifests, files, strict=True):
        reason = why_not_regular(file)
        if reason is not None:
            raise ManifestError(f"{name}: {reason}; give the path of a JSON-lines manifest")
    findings, done, total = Findings(), 0, sum(Path(file).stat().st_size for file in files)
    for file in files:
        folder = os.path.dirname(os.path.abspath(file))  # noqa: PTH100, PTH120 - links are not followed
        for first, block in line_blocks(file, _BYTES_AT_ONCE, key="manifest"):
            values, paths, durations = _parse(file, first, block, findings)
            columns.add_rows(values, durations, (hash(_named_from(folder, path)) & _64_BITS for path in paths))
            findings.seconds += float(np.nansum(durations))
            done += len(block)
            if progress is not None:
                progress(done, total, findings)
    return findings


def _parse(
    file: str, first: int, block: bytes, findings: Findings
) -> tuple[list[dict[str, Any]], list[str], np.ndarray]:
    """Return JSON values, paths and durations of a block's valid lines; the others become problems."""
    usual = decode_block(block)
    rows = None if usual is None else rows_of_values(first, usual)
    if usual is not None and rows is not None:
        findings.lines += len(usual)
        return usual, rows.paths, rows.durations
    values, paths, durations = [], [], []
    for number, line in numbered_lines(first, block):
        findings.lines += 1
        parsed = parse_or_problem(file, number, line)
        if isinstance(parsed, Problem):
            findings.faulty_lines += 1
            findings.add(parsed)
            continue
        values.append(parsed.value)
        paths.append(parsed.row.path)
        durations.append(parsed.row.duration)
    return values, paths, np.array(durations, dtype=np.float64)


def _named_from(folder: str, path: str) -> str:
    """Return a name that is the same for the same file, as far as the text of the path shows."""
    return path if path.startswith(("/", "~")) else f"{folder}/{path}"
