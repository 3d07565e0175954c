"""Find all problems of manifests and their audio before a training run meets them: `nest-ssl data check`.

The manifests are read once, a few dozen lines at a time, and several processes read the audio of those lines. Problems
are written as they are found. Memory is needed only for the hashes that find duplicates and overlaps: 40 bytes a line.
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
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nest_ssl.apps.datatools.check_lines import Block, CheckedLine, Rules, check_block
from nest_ssl.apps.datatools.clean_manifests import new_file, write_clean
from nest_ssl.apps.datatools.processes import in_processes
from nest_ssl.data.inspection.bandwidth import NarrowBand
from nest_ssl.data.inspection.overlap import AudioParts, Overlap, shared_audio
from nest_ssl.data.manifest_lines import line_blocks
from nest_ssl.data.paths import resolve_path
from nest_ssl.data.problems import Problem
from nest_ssl.errors import ManifestError, NestError
from nest_ssl.regular_file import why_not_regular

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
    """One manifest, with hashes of its entries and the numbers of its faulty lines."""

    def __init__(self, name: str, rules: Rules, is_noise: bool) -> None:
        self.file = resolve_path(name)
        reason = why_not_regular(self.file)
        if reason is not None:
            raise ManifestError(f"{name}: {reason}; give the path of a JSON-lines manifest")
        self.size = Path(self.file).stat().st_size
        self.rules = dataclasses.replace(rules, channel_selector=None) if is_noise else rules
        self.is_noise = is_noise
        self.fingerprints = array("Q")
        self.files = array("Q")
        self.offsets, self.durations = array("d"), array("d")
        self.numbers = array("q")
        self.faulty = array("q")
        self.duplicates: set[int] = set()


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
    sources = [_Source(name, rules, is_noise=False) for name in manifests]
    sources += [_Source(name, rules, is_noise=True) for name in noise]
    _refuse_to_overwrite(sources, [*clean, *([] if report is None else [report])])
    findings, total, done = Findings(), sum(source.size for source in sources), 0
    with contextlib.ExitStack() as stack:
        listing = None if report is None else stack.enter_context(new_file(report))
        cleaned = [stack.enter_context(new_file(path)) for path in clean]
        for source, block, lines in stack.enter_context(contextlib.closing(_checked(sources, workers, start_method))):
            for line in lines:
                _take_note(line, source, findings, listing)
                if observe is not None:
                    observe(line)
            done += len(block.content)
            if progress is not None:
                progress(done, total, findings)
        if "duplicate" not in rules.ignored:
            for group in (sources[: len(manifests)], sources[len(manifests) :]):
                for duplicate in _duplicates(group) if group else ():
                    _list_problem(duplicate, findings, listing)
        if "overlap" not in rules.ignored:
            for overlap in _overlaps(sources[: len(manifests)], findings):
                _list_problem(overlap, findings, listing)
        findings.faulty_lines = sum(len(np.unique(source.faulty)) for source in sources)
        for source, path, file in zip(sources[: len(clean)], clean, cleaned, strict=True):
            write_clean(source.file, np.unique(source.faulty), path, file)
    return findings


def _take_note(line: CheckedLine, source: _Source, findings: Findings, listing: IO[bytes] | None) -> None:
    audio = line.audio
    findings.lines += 1
    findings.seconds += audio.seconds
    if audio.sample_rate is not None:
        findings.sample_rates[audio.sample_rate] += 1
    if not math.isnan(audio.bandwidth) and not source.is_noise:
        findings.narrow.add(audio.bandwidth, audio.seconds, f"{source.file}:{line.number}", source.rules.sample_rate)
    if line.fingerprint is not None:
        source.fingerprints.append(line.fingerprint)
        source.files.append(line.file)
        source.offsets.append(line.offset)
        source.durations.append(line.said)
        source.numbers.append(line.number)
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
) -> Generator[tuple[_Source, Block, list[CheckedLine]], None, None]:
    """Yield every block of the manifests with its checked lines, in order."""
    blocks = (
        (source, Block(source.file, first, content))
        for source in sources
        for first, content in line_blocks(source.file, _BYTES_AT_ONCE, key="manifest")
    )
    results = in_processes(
        check_block,
        (((source, block), (block, source.rules)) for source, block in blocks),
        workers,
        died_at=lambda piece: f"{piece[1].manifest}:{piece[1].first}: a process died reading audio of these lines",
        start_method=start_method,
    )
    with contextlib.closing(results):
        yield from ((source, block, lines) for (source, block), lines in results)


def _duplicates(sources: Sequence[_Source]) -> Iterator[Problem]:
    """Yield lines that name the same part of a file as an earlier line, and add them to their sources."""
    ends = np.cumsum([len(source.numbers) for source in sources])
    fingerprints = np.concatenate([np.asarray(source.fingerprints) for source in sources])
    order = np.argsort(fingerprints, kind="stable")
    ascending = fingerprints[order]
    repeats = np.flatnonzero(ascending[1:] == ascending[:-1]) + 1
    firsts = order[np.searchsorted(ascending, ascending[repeats])]
    in_order = np.argsort(order[repeats])
    for index, first in zip(order[repeats][in_order], firsts[in_order], strict=True):
        again, original = _place(index, sources, ends), _place(first, sources, ends)
        again.source.faulty.append(again.number)
        again.source.duplicates.add(again.number)
        yield Problem("duplicate", "", str(again), f"{again}: the same part of the same file as {original}")


def _overlaps(sources: Sequence[_Source], findings: Findings) -> Iterator[Problem]:
    """Yield lines that share audio with an earlier manifest; identical parts are duplicates already."""
    if len(sources) < 2:
        return
    ends = np.cumsum([len(source.numbers) for source in sources])
    numbers = np.unique(np.concatenate([np.asarray(source.files) for source in sources]), return_inverse=True)[1]
    offsets, durations = (
        np.concatenate([np.asarray(getattr(source, name)) for source in sources]) for name in ("offsets", "durations")
    )
    parts = AudioParts.of(numbers, offsets, durations)
    for source, first, end in zip(sources[1:], ends, ends[1:], strict=False):
        own, earlier = (AudioParts(*(column[some] for column in parts)) for some in (slice(first, end), slice(first)))
        lines, others = shared_audio(own, earlier)
        if not len(lines):
            continue
        example, original = str(_Place(source, source.numbers[lines[0]])), str(_place(others[0], sources, ends))
        findings.shared.append(Overlap(len(lines), int(end - first), example, original))
        for line, other in zip(lines, others, strict=True):
            again = _Place(source, source.numbers[line])
            if again.number not in source.duplicates:
                source.faulty.append(again.number)
                yield Problem("overlap", "", str(again), f"{again}: shares audio with {_place(other, sources, ends)}")


class _Place(NamedTuple):
    source: _Source
    number: int

    def __str__(self) -> str:
        return f"{self.source.file}:{self.number}"


def _place(index: int, sources: Sequence[_Source], ends: np.ndarray) -> _Place:
    """Return the line of an entry, given its index over all sources."""
    which = int(np.searchsorted(ends, index, side="right"))
    source = sources[which]
    return _Place(source, source.numbers[index - ends[which] + len(source.numbers)])


def _refuse_to_overwrite(sources: Sequence[_Source], targets: Sequence[Path]) -> None:
    for target in targets:
        for source in sources:
            if target.exists() and Path(source.file).exists() and target.samefile(source.file):
                raise NestError(f"{target}: is one of the manifests to check; give another name to write to")
        if target.is_dir():
            raise NestError(f"{target}: is a folder; give the name of a file to write")
    if len({target.absolute() for target in targets}) < len(targets):
        raise NestError(f"{targets[-1]}: cannot be both a clean manifest and the report; give two names")
