"""Make a manifest from folders of audio: every file is read, and files that training cannot use are reported.

The result for each file is written at once to a journal beside the output, so that an interrupted run continues with
the remaining files. The manifests appear when all files are done.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from nest_ssl.apps.datatools.audio_folder import AudioName, Labels, convert, read_folders
from nest_ssl.apps.datatools.check import Findings, Progress
from nest_ssl.apps.datatools.check_lines import Rules, check_entry
from nest_ssl.apps.datatools.manifest_files import json_line, new_file, path_from
from nest_ssl.apps.datatools.processes import in_processes
from nest_ssl.apps.datatools.split import Split, SplitRule, hold_out, refuse_existing, refuse_no_groups
from nest_ssl.data.manifest_lines import ManifestEntry
from nest_ssl.data.problems import Problem
from nest_ssl.errors import AudioError, NestError

_FILES_AT_ONCE = 16


@dataclass(frozen=True)
class FileFacts:
    """One audio file: its duration, or its problems."""

    file: str
    used: str = ""  # the file to train on: itself, or its conversion
    duration: float = 0.0
    sample_rate: int = 0
    problems: tuple[Problem, ...] = ()


AddToJournal = Callable[[list[FileFacts]], list[FileFacts]]  # returns the same


@dataclass(frozen=True)
class ManifestOptions:
    """Options of reading the files."""

    rules: Rules = field(default_factory=Rules)
    convert_to: Path | None = None  # a folder for conversions of what only ffmpeg reads
    workers: int = 1
    force: bool = False  # replace manifests that exist
    ffmpeg: str | None = field(default_factory=lambda: shutil.which("ffmpeg"))  # None if it is not installed


@dataclass
class Made:
    """The result of making a manifest: the files that were written, and the problems that were found."""

    findings: Findings
    lines: int
    others: dict[str, int]  # other files, by suffix
    resumed: int = 0  # files known from an interrupted run
    converted: int = 0
    split: Split | None = None


def make_manifest(
    folders: Sequence[Path],
    output: Path,
    options: ManifestOptions,
    *,
    labels: Sequence[Labels] = (),
    val: Path | None = None,
    rule: SplitRule | None = None,
    report: Path | None = None,
    progress: Progress | None = None,
) -> Made:
    """Write the manifest of all audio below the folders; what the rule holds out is written to `val`.

    All problems are written to `report`.
    """
    refuse_existing([output] if val is None else [output, val], options.force)
    files, others = read_folders(folders, without=options.convert_to)
    if not files:
        raise NestError(f"{', '.join(map(str, folders))}: has no audio files")
    rows: list[dict[str, Any]] = []
    groups: list[str | None] = []
    with contextlib.ExitStack() as stack:
        known, add = stack.enter_context(_journal(output, options))
        findings = Findings(None if report is None else stack.enter_context(new_file(report)))
        made = Made(findings, 0, dict(others.most_common()), resumed=sum(audio.file in known for audio in files))
        read = _read_all(files, known, add, options)
        for done, (audio, facts) in enumerate(zip(files, read, strict=True), start=1):
            findings.add_line(facts.duration, facts.sample_rate, facts.problems)
            if not facts.problems:
                made.converted += facts.used != facts.file
                row = {"audio_filepath": _relative_path(facts.used, output.parent), "duration": facts.duration}
                for label in labels:
                    row.update(label(audio))
                rows.append(row)
                groups.append(None if rule is None else rule.group_of(row, audio.name))
            if progress is not None:
                progress(done, len(files), findings)
        if not rows:
            first = next(iter(findings.examples.values()))[0]
            raise NestError(f"none of {len(files):,} audio files can be used: {first.message}")
        if rule is not None:
            refuse_no_groups(groups, rule, set().union(*rows), "these files")
            made.split = hold_out(groups, [row["duration"] for row in rows], rule)
        made.lines = len(rows)
        _write(rows, output, val, made.split)
    return made


def _read_all(
    files: Sequence[AudioName], known: dict[str, FileFacts], add: AddToJournal, options: ManifestOptions
) -> Iterator[FileFacts]:
    """Yield the facts of every file, in order; files with known facts are not read again."""
    new = [one for one in files if one.file not in known]
    blocks = [new[start : start + _FILES_AT_ONCE] for start in range(0, len(new), _FILES_AT_ONCE)]
    results = in_processes(
        partial(_read_files, options=options),
        blocks,
        options.workers,
        died_at=lambda block: f"{block[0].file}: a process died reading this file",
    )

    with contextlib.closing(results):
        fresh = chain.from_iterable(add(found) for _, found in results)
        for one in files:
            yield known[one.file] if one.file in known else next(fresh)


def _read_files(files: Sequence[AudioName], options: ManifestOptions) -> list[FileFacts]:
    return [_read_or_convert(audio, options) for audio in files]


def _read_or_convert(audio: AudioName, options: ManifestOptions) -> FileFacts:
    facts, file = _read(audio.file, audio.file, options.rules), Path(audio.file)
    if not facts.problems or facts.problems[0].kind != "unreadable" or not file.is_file():
        return facts
    if options.ffmpeg is None or options.convert_to is None:
        missing = "ffmpeg, which reads more formats, is not installed"
        unasked = "if ffmpeg reads it, --convert FOLDER writes it as FLAC, which training reads"
        first = facts.problems[0]
        message = f"{first.message}; {missing if options.ffmpeg is None else unasked}"
        return replace(facts, problems=(first._replace(message=message),))
    target = options.convert_to / audio.folder / f"{audio.name}.flac"
    try:
        if not (target.is_file() and target.stat().st_mtime >= file.stat().st_mtime):
            convert(file, target, options.ffmpeg)
    except AudioError as error:
        return FileFacts(audio.file, problems=(Problem(error.kind, audio.file, audio.file, str(error), "skipped"),))
    return _read(audio.file, str(target), options.rules)


def _read(file: str, used: str, rules: Rules) -> FileFacts:
    """Return the facts of a file, whether or not libsndfile can read it."""
    entry = ManifestEntry(used, None, 0.0, file)
    checked = check_entry(entry, rules)
    if rules.quick and not checked.problems and not checked.seconds:  # a stream, whose header has no duration
        checked = check_entry(entry, replace(rules, quick=False))
    problems = tuple(found._replace(message=found.message.replace(f" ({file})", "")) for found in checked.problems)
    return FileFacts(file, used, round(checked.seconds, 6), checked.sample_rate or 0, problems)


def _relative_path(file: str, folder: Path) -> str:
    """Return the path of a file relative to a folder; of the file's own name, links are not followed."""
    place, name = os.path.split(os.path.abspath(file))  # noqa: PTH100
    return path_from(os.path.realpath(folder), os.path.join(os.path.realpath(place), name))  # noqa: PTH118


def _write(rows: Sequence[dict[str, Any]], output: Path, val: Path | None, split: Split | None) -> None:
    with contextlib.ExitStack() as stack:
        training = validation = stack.enter_context(new_file(output))
        if val is not None:
            validation = stack.enter_context(new_file(val))
        for number, row in enumerate(rows):
            held_out = split is not None and split.held_out[number]
            (validation if held_out else training).write(json_line(row))


@contextlib.contextmanager
def _journal(output: Path, options: ManifestOptions) -> Iterator[tuple[dict[str, FileFacts], AddToJournal]]:
    """Yield the facts that an interrupted run with the same rules left, and a function that writes more of them.

    They are in a file beside the output, which is removed at the end of a run without an error.
    """
    path = output.with_name(f".{output.name}.partial")
    convert_to = None if options.convert_to is None else os.path.abspath(options.convert_to)  # noqa: PTH100
    head = {"rules": repr(options.rules), "convert": convert_to, "ffmpeg": options.ffmpeg is not None}
    known = _read_journal(path, head)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise NestError(f"{path}: cannot be written: {error.strerror or error}") from None

    def add(facts: list[FileFacts]) -> list[FileFacts]:
        file.writelines(json.dumps({**vars(one), "stamp": _stamp(one.file)}) + "\n" for one in facts)
        file.flush()
        return facts

    with file:
        file.write(json.dumps(head) + "\n")
        add(list(known.values()))
        yield known, add
    path.unlink(missing_ok=True)


def _read_journal(path: Path, head: dict[str, Any]) -> dict[str, FileFacts]:
    """Return the facts of files that have not changed since they were written."""
    known: dict[str, FileFacts] = {}
    damaged = (OSError, ValueError, KeyError, TypeError)  # such as half a line of a killed run: ends the loop
    with contextlib.suppress(*damaged), path.open(encoding="utf-8") as lines:
        if json.loads(next(lines, "null")) == head:
            for line in lines:
                value = json.loads(line)
                stamp, problems = value.pop("stamp"), tuple(Problem(*found) for found in value.pop("problems"))
                facts = FileFacts(**value, problems=problems)
                if _stamp(facts.file) == stamp and (problems or Path(facts.used).is_file()):
                    known[facts.file] = facts
    return known


def _stamp(file: str) -> list[int] | None:
    """Return values that change when a file does."""
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]
