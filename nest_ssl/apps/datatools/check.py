"""Find all problems of manifests and their audio before a training run meets them: `nest-ssl data check`.

The manifests are read once, a few dozen lines at a time, and several processes read the audio of those lines. Problems
are written as they are found. Memory is needed only for the hashes that find duplicates and overlaps: 44 bytes a line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from nest_ssl.apps.datatools.check_lines import Block, CheckedLine, Rules, check_block
from nest_ssl.apps.datatools.manifest_files import copy_without, manifest_file, new_file
from nest_ssl.apps.datatools.processes import in_processes
from nest_ssl.data.inspection.bandwidth import NarrowBand
from nest_ssl.data.inspection.overlap import AudioParts, Overlap, shared_audio
from nest_ssl.data.manifest_lines import Seconds, line_blocks
from nest_ssl.data.problems import Problem
from nest_ssl.errors import NestError

_BYTES_AT_ONCE = 2**12  # some thirty lines, a second's work: for frequent progress and quick interruption
_EXAMPLES = 3  # of each kind


@dataclass
class Findings:
    """The results of a check so far; every problem is also written to `listing`."""

    listing: IO[bytes] | None = None
    lines: int = 0
    faulty_lines: int = 0
    skipped: int = 0  # of those, lines that training skips
    no_entries: int = 0  # of those, lines at which training stops
    seconds: Seconds = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    sample_rates: Counter[int] = field(default_factory=Counter)
    examples: dict[str, list[Problem]] = field(default_factory=dict)
    narrow: NarrowBand = field(default_factory=NarrowBand)
    shared: list[Overlap] = field(default_factory=list)  # audio of one manifest that is also in an earlier one

    def add_line(self, seconds: Seconds, sample_rate: int | None, problems: Sequence[Problem]) -> None:
        """Count a line with its audio and its problems."""
        self.lines += 1
        self.seconds += seconds
        self.faulty_lines += bool(problems)
        if sample_rate:
            self.sample_rates[sample_rate] += 1
        for problem in problems:
            self.add(problem)

    def add(self, problem: Problem) -> None:
        """Count a problem, list it, and keep the first ones of each kind as examples."""
        self.kinds[problem.kind] += 1
        examples = self.examples.setdefault(problem.kind, [])
        if len(examples) < _EXAMPLES:
            examples.append(problem)
        if self.listing is not None:
            self.listing.write(json.dumps(_record(problem)).encode() + b"\n")

    @property
    def used(self) -> int:
        """The number of lines with problems that training uses nevertheless, with `suspicious_audio: use`."""
        return self.faulty_lines - self.skipped - self.no_entries

    def as_dict(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return {
            "lines": self.lines,
            "faulty_lines": self.faulty_lines,
            "skipped": self.skipped,
            "used": self.used,
            "no_entries": self.no_entries,
            "hours": self.seconds / 3600,
            "problems": dict(self.kinds),
            "sample_rates": {str(rate): count for rate, count in self.sample_rates.items()},
            "examples": {kind: list(map(_record, some)) for kind, some in self.examples.items()},
            "narrow_band": dataclasses.asdict(self.narrow),
            "shared": [dataclasses.asdict(overlap) for overlap in self.shared],
        }


def _record(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON values."""
    return {"kind": problem.kind, "file": problem.file, "line": problem.line, "message": problem.message}


Progress = Callable[[int, int, Findings], None]  # bytes (or files) done, in all, and the results so far
Observer = Callable[[CheckedLine], None]


class _Entries:
    """The entries of manifests, in order, as columns; and the numbers of each manifest's faulty lines."""

    def __init__(self, names: Sequence[str]) -> None:
        self.manifests = [manifest_file(name) for name in names]
        self.faulty = [array("q") for _ in names]
        self.which = array("i")  # index of the manifest
        self.numbers = array("q")  # of lines
        self.parts, self.files = array("Q"), array("Q")  # hashes
        self.offsets, self.durations = array("d"), array("d")
        self.duplicates: set[int] = set()

    def add(self, line: CheckedLine, which: int) -> None:
        if line.audio.problems:
            self.faulty[which].append(line.number)
        if line.row is not None:
            self.which.append(which)
            self.numbers.append(line.number)
            self.parts.append(line.part)
            self.files.append(line.file)
            self.offsets.append(line.row.offset)
            self.durations.append(line.row.duration)

    def duplicated(self) -> Iterator[Problem]:
        """Yield lines that name the same part of a file as an earlier line."""
        _, firsts, numbers = np.unique(np.asarray(self.parts), return_index=True, return_inverse=True)
        originals = firsts[numbers]
        for index in np.flatnonzero(originals != np.arange(len(originals))).tolist():
            self.duplicates.add(index)
            yield self._problem(index, "duplicate", f"the same part of the same file as {self._line(originals[index])}")

    def overlapping(self, shared: list[Overlap]) -> Iterator[Problem]:
        """Yield lines that share audio with an earlier manifest and are no duplicates; add each overlap to `shared`."""
        files = np.unique(np.asarray(self.files), return_inverse=True)[1]
        parts = AudioParts.of(files, np.asarray(self.offsets), np.asarray(self.durations))
        for which in range(1, len(self.manifests)):
            first, end = np.searchsorted(self.which, (which, which + 1))
            own, earlier = (
                AudioParts(*(column[part] for column in parts)) for part in (slice(first, end), slice(first))
            )
            pairs = shared_audio(own, earlier)
            lines, others = (first + pairs.lines).tolist(), pairs.others.tolist()
            if lines:
                shared.append(Overlap(len(lines), int(end - first), self._line(lines[0]), self._line(others[0])))
            for index, other in zip(lines, others, strict=True):
                if index not in self.duplicates:
                    yield self._problem(index, "overlap", f"shares audio with {self._line(other)}")

    def _line(self, index: int) -> str:
        return f"{self.manifests[self.which[index]]}:{self.numbers[index]}"

    def _problem(self, index: int, kind: str, message: str) -> Problem:
        """Return the problem of an entry, and count its line as faulty."""
        self.faulty[self.which[index]].append(self.numbers[index])
        return Problem(kind, "", self._line(index), f"{self._line(index)}: {message}")


def check_manifests(
    manifests: Sequence[str],
    rules: Rules,
    *,
    noise: Sequence[str] = (),
    workers: int = 1,
    clean: Sequence[Path] = (),
    report: Path | None = None,
    progress: Progress | None = None,
    observe: Observer | None = None,
) -> Findings:
    """Check every line of the manifests, in `workers` processes or, for one worker, in this process.

    All problems are written to `report`. Lines without problems are written to the files of `clean`, one for each of
    `manifests` (not of `noise`). `observe` is called with every line, in order, in this process.
    """
    speech, noises = _Entries(manifests), _Entries(noise)
    owners = [(entries, which) for entries in (speech, noises) for which in range(len(entries.manifests))]
    files = [entries.manifests[which] for entries, which in owners]
    _refuse_to_overwrite(files, [*clean, *([] if report is None else [report])])
    total, done = sum(Path(file).stat().st_size for file in files), 0
    noise_rules = dataclasses.replace(rules, channel_selector=None)
    blocks = (
        Block(number, file, first, content, rules if number < len(manifests) else noise_rules)
        for number, file in enumerate(files)
        for first, content in line_blocks(file, _BYTES_AT_ONCE, key="manifest")
    )
    checked = in_processes(
        check_block,
        blocks,
        workers,
        died_at=lambda block: f"{block.file}:{block.first}: a process died reading audio of these lines",
    )
    with contextlib.ExitStack() as stack:
        findings = Findings(None if report is None else stack.enter_context(new_file(report)))
        cleaned = [stack.enter_context(new_file(path)) for path in clean]
        for block, lines in stack.enter_context(contextlib.closing(checked)):
            entries, which = owners[block.manifest]
            for line in lines:
                entries.add(line, which)
                _count(line, block, findings, is_speech=entries is speech)
                if observe is not None:
                    observe(line)
            done += len(block.content)
            if progress is not None:
                progress(done, total, findings)
        if "duplicate" not in rules.ignored:
            for problem in chain(speech.duplicated(), noises.duplicated()):
                findings.add(problem)
        if "overlap" not in rules.ignored:
            for problem in speech.overlapping(findings.shared):
                findings.add(problem)
        faulty = [np.unique(entries.faulty[which]) for entries, which in owners]
        findings.faulty_lines = sum(map(len, faulty))
        for file, numbers, path, target in zip(files, faulty, clean, cleaned, strict=False):
            copy_without(file, numbers, path, target)
    return findings


def _count(line: CheckedLine, block: Block, findings: Findings, is_speech: bool) -> None:
    audio = line.audio
    findings.add_line(audio.seconds, audio.sample_rate, audio.problems)
    findings.no_entries += bool(audio.problems) and line.row is None
    findings.skipped += any(problem.outcome == "skipped" for problem in audio.problems)
    if is_speech and not math.isnan(audio.bandwidth):
        findings.narrow.add(audio.bandwidth, audio.seconds, f"{block.file}:{line.number}", block.rules.sample_rate)


def _refuse_to_overwrite(manifests: Sequence[str], targets: Sequence[Path]) -> None:
    for target in targets:
        if any(target.exists() and target.samefile(file) for file in manifests):
            raise NestError(f"{target}: is one of the manifests to check; give another name to write to")
        if target.is_dir():
            raise NestError(f"{target}: is a folder; give the name of a file to write")
    if len({target.absolute() for target in targets}) < len(targets):
        raise NestError(f"{targets[-1]}: cannot be both a clean manifest and the report; give two names")
