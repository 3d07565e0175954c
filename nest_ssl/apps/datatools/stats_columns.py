"""What is kept of every line for statistics: a few numbers each, so that ten million lines fit into memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nest_ssl.apps.datatools.check_lines import CheckedLine
from nest_ssl.apps.datatools.line_facts import NOT_CATEGORIES, as_category
from nest_ssl.data.manifest_lines import Seconds

MOST_VALUES = 100_000  # of a field; one with more is not remembered
_ABSENT = -1


class Tally:
    """How many lines, and how many seconds, each value of something has."""

    def __init__(self) -> None:
        self.lines: dict[Any, int] = {}
        self.seconds: dict[Any, Seconds] = {}

    def add(self, value: Hashable, seconds: Seconds) -> None:
        self.lines[value] = self.lines.get(value, 0) + 1
        self.seconds[value] = self.seconds.get(value, 0.0) + seconds

    def by_seconds(self) -> list[tuple[Any, int, Seconds]]:
        """(value, lines, seconds), the most seconds first."""
        rows = [(value, lines, self.seconds[value]) for value, lines in self.lines.items()]
        return sorted(rows, key=lambda row: (-row[2], -row[1], str(row[0])))


class Columns:
    """Grows line by line. `by` is a field whose value is kept of every line, to break durations down by it."""

    def __init__(self, by: str | None = None) -> None:
        self.by = by
        self.seconds = array("d")  # of audio; NaN where it is unknown or cannot be used
        self.said = array("d")  # the manifest's durations, NaN where it does not say
        self.files = array("Q")  # fingerprints
        self.in_tar = 0
        self.measured = array("f")  # seconds of every line whose samples were read; the next four are about those
        self.rms, self.peak, self.clipped, self.silence = (array("f") for _ in range(4))
        self.sample_rates, self.channels, self.formats = Tally(), Tally(), Tally()
        self.fields: dict[str, Tally | None] = {}  # None: too many values
        self.groups = array("i")  # the number of every line's value of `by`; -1 where it has none
        self.group_numbers: dict[str, int] = {}

    def add_line(self, line: CheckedLine) -> None:
        """A line whose audio was read, or looked at; what is no entry is passed over."""
        facts = line.facts
        if facts is None:
            return
        seconds = line.seconds or math.nan  # no audio that can be used has no samples
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
        """Lines of which only the manifest is known: their JSON values, and what was made of them."""
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
