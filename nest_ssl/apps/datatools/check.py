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
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from nest_ssl.apps.datatools.check_lines import CheckedLine, Rules, check_block
from nest_ssl.apps.datatools.manifest_files import manifest_file, new_file, write_clean
from nest_ssl.apps.datatools.processes import in_processes
from nest_ssl.data.inspection.bandwidth import NarrowBand
from nest_ssl.data.inspection.overlap import AudioParts, Overlap, shared_audio
from nest_ssl.data.manifest_lines import line_blocks
from nest_ssl.data.problems import Problem
from nest_ssl.errors import NestError

_BYTES_AT_ONCE = 2**12  # some thirty lines, a second's work: for frequent progress and quick interruption
_EXAMPLES = 3  # of each kind


@dataclass
class Findings:
    """The results of a check so far."""

    lines: int = 0
    faulty_lines: int = 0
    skipped: int = 0  # of those, lines that training skips
    no_entries: int = 0  # of those, lines at which training stops
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    sample_rates: Counter[int] = field(default_factory=Counter)
    examples: dict[str, list[Problem]] = field(default_factory=dict)
    narrow: NarrowBand = field(default_factory=NarrowBand)
    shared: list[Overlap] = field(default_factory=list)  # audio of one manifest that is also in an earlier one

    def add(self, found: Problem) -> None:
        """Count a problem, and keep the first ones of each kind as examples."""
        self.kinds[found.kind] += 1
        examples = self.examples.setdefault(found.kind, [])
        if len(examples) < _EXAMPLES:
            examples.append(found)

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
            "examples": {kind: [record(found) for found in some] for kind, some in self.examples.items()},
            "narrow_band": dataclasses.asdict(self.narrow),
            "shared": [dataclasses.asdict(overlap) for overlap in self.shared],
        }


Progress = Callable[[int, int, Findings], None]  # bytes (or files) done, in all, and the results so far
Observer = Callable[[CheckedLine], None]


class _Source:
    """One manifest, and the numbers of its faulty lines."""

    def __init__(self, name: str, rules: Rules, entries: _Entries) -> None:
        self.file = manifest_file(name)
        self.size = Path(self.file).stat().st_size
        self.rules = rules
        self.faulty = array("q")
        self.entries = entries
        entries.sources.append(self)


class _Entries:
    """The entries of several manifests in order, as columns."""

    def __init__(self) -> None:
        self.sources: list[_Source] = []
        self.which = array("i")  # index of the source
        self.numbers = array("q")  # of lines
        self.fingerprints, self.files = array("Q"), array("Q")
        self.offsets, self.durations = array("d"), array("d")
        self.duplicates: set[int] = set()

    def add(self, line: CheckedLine, source: _Source) -> None:
        if line.fingerprint is not None:
            self.which.append(self.sources.index(source))
            self.numbers.append(line.number)
            self.fingerprints.append(line.fingerprint)
            self.files.append(line.file)
            self.offsets.append(line.offset)
            self.durations.append(line.said)

    def place(self, index: int) -> str:
        return f"{self.sources[self.which[index]].file}:{self.numbers[index]}"

    def faulty(self, index: int, kind: str, message: str) -> Problem:
        """Return the problem of an entry, and count its line among the faulty ones of its manifest."""
        self.sources[self.which[index]].faulty.append(self.numbers[index])
        return Problem(kind, "", self.place(index), f"{self.place(index)}: {message}")


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
    start_method: str | None = None,
) -> Findings:
    """Check every line of the manifests, in `workers` processes or, for one worker, in this process.

    All problems are written to `report`. Lines without problems are written to the files of `clean`, one for each of
    `manifests` (not of `noise`). `observe` is called with every line, in order, in this process.
    """
    speech, noises = _Entries(), _Entries()
    sources = [_Source(name, rules, speech) for name in manifests]
    sources += [_Source(name, dataclasses.replace(rules, channel_selector=None), noises) for name in noise]
    _refuse_to_overwrite(sources, [*clean, *([] if report is None else [report])])
    findings, total, done = Findings(), sum(source.size for source in sources), 0
    with contextlib.ExitStack() as stack:
        listing = None if report is None else stack.enter_context(new_file(report))
        cleaned = [stack.enter_context(new_file(path)) for path in clean]
        for source, size, lines in stack.enter_context(contextlib.closing(_checked(sources, workers, start_method))):
            for line in lines:
                _take_note(line, source, findings, listing, is_speech=source.entries is speech)
                if observe is not None:
                    observe(line)
            done += size
            if progress is not None:
                progress(done, total, findings)
        if "duplicate" not in rules.ignored:
            for duplicate in chain(_duplicates(speech), _duplicates(noises)):
                _list_problem(duplicate, findings, listing)
        if "overlap" not in rules.ignored:
            for overlap in _overlaps(speech, findings):
                _list_problem(overlap, findings, listing)
        findings.faulty_lines = sum(len(np.unique(source.faulty)) for source in sources)
        for source, path, file in zip(sources[: len(clean)], clean, cleaned, strict=True):
            write_clean(source.file, np.unique(source.faulty), path, file)
    return findings


def _take_note(
    line: CheckedLine, source: _Source, findings: Findings, listing: IO[bytes] | None, is_speech: bool
) -> None:
    audio = line.audio
    findings.lines += 1
    findings.seconds += audio.seconds
    if audio.sample_rate is not None:
        findings.sample_rates[audio.sample_rate] += 1
    if not math.isnan(audio.bandwidth) and is_speech:
        findings.narrow.add(audio.bandwidth, audio.seconds, f"{source.file}:{line.number}", source.rules.sample_rate)
    source.entries.add(line, source)
    if audio.problems:
        source.faulty.append(line.number)
        findings.no_entries += line.fingerprint is None
        findings.skipped += any(found.outcome == "skipped" for found in audio.problems)
    for found in audio.problems:
        _list_problem(found, findings, listing)


def _list_problem(found: Problem, findings: Findings, listing: IO[bytes] | None) -> None:
    findings.add(found)
    if listing is not None:
        listing.write(json.dumps(record(found)).encode() + b"\n")


def record(found: Problem) -> dict[str, Any]:
    """Return a problem as a line of a report."""
    return {"kind": found.kind, "file": found.file, "line": found.line, "message": found.message}


def _checked(
    sources: Sequence[_Source], workers: int, start_method: str | None
) -> Generator[tuple[_Source, int, list[CheckedLine]], None, None]:
    """Yield the size and the checked lines of every block of the manifests, in order."""
    blocks = (
        ((source, first, len(content)), (source.file, first, content, source.rules))
        for source in sources
        for first, content in line_blocks(source.file, _BYTES_AT_ONCE, key="manifest")
    )
    results = in_processes(
        check_block,
        blocks,
        workers,
        died_at=lambda piece: f"{piece[0].file}:{piece[1]}: a process died reading audio of these lines",
        start_method=start_method,
    )
    with contextlib.closing(results):
        yield from ((source, size, lines) for (source, _, size), lines in results)


def _duplicates(entries: _Entries) -> Iterator[Problem]:
    """Yield lines that name the same part of a file as an earlier line."""
    fingerprints = np.asarray(entries.fingerprints)
    _, firsts, numbers = np.unique(fingerprints, return_index=True, return_inverse=True)
    originals = firsts[numbers]
    for index in np.flatnonzero(originals != np.arange(len(originals))).tolist():
        entries.duplicates.add(index)
        original = entries.place(originals[index])
        yield entries.faulty(index, "duplicate", f"the same part of the same file as {original}")


def _overlaps(entries: _Entries, findings: Findings) -> Iterator[Problem]:
    """Yield lines that share audio with an earlier manifest; identical parts are duplicates already."""
    which = np.asarray(entries.which)
    numbers = np.unique(np.asarray(entries.files), return_inverse=True)[1]
    parts = AudioParts.of(numbers, np.asarray(entries.offsets), np.asarray(entries.durations))
    for source in range(1, len(entries.sources)):
        first, end = np.searchsorted(which, (source, source + 1))
        own, earlier = (AudioParts(*(column[some] for column in parts)) for some in (slice(first, end), slice(first)))
        pairs = shared_audio(own, earlier)
        lines, others = (first + pairs.lines).tolist(), pairs.others.tolist()
        if lines:
            example, original = entries.place(lines[0]), entries.place(others[0])
            findings.shared.append(Overlap(len(lines), int(end - first), example, original))
        for index, other in zip(lines, others, strict=True):
            if index not in entries.duplicates:
                yield entries.faulty(index, "overlap", f"shares audio with {entries.place(other)}")


def _refuse_to_overwrite(sources: Sequence[_Source], targets: Sequence[Path]) -> None:
    for target in targets:
        for source in sources:
            if target.exists() and Path(source.file).exists() and target.samefile(source.file):
                raise NestError(f"{target}: is one of the manifests to check; give another name to write to")
        if target.is_dir():
            raise NestError(f"{target}: is a folder; give the name of a file to write")
    if len({target.absolute() for target in targets}) < len(targets):
        raise NestError(f"{targets[-1]}: cannot be both a clean manifest and the report; give two names")
