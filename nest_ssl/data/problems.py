"""Everything that can be wrong with the audio of a manifest: its kinds, and what training does about each.

Training cannot use a broken file. A suspicious one it can, and NeMo does, so by default it is used here too and only
reported: a healthy set and a suspicious one both give NeMo's numbers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from nest_ssl.data.manifest_lines import ManifestEntry, Seconds
from nest_ssl.errors import AudioError

log = logging.getLogger(__name__)

BrokenKind = Literal["unreadable", "empty", "not_finite", "channels"]
SuspiciousKind = Literal["silent", "shorter", "longer"]
# what only a check of manifests looks for
ListedKind = Literal["bad_line", "duplicate", "overlap", "sample_rate", "narrow_band"]
Kind = Literal[ListedKind, BrokenKind, SuspiciousKind]
Outcome = Literal["used", "skipped", "drew other noise"]  # what training did with it
UnreadablePolicy = Literal["skip", "stop"]
SuspiciousPolicy = Literal["use", "skip", "stop"]

KINDS: tuple[str, ...] = get_args(Kind)

LENGTH_TOLERANCE: Seconds = 0.1  # durations are often rounded, and those of MP3 files estimated
_SAMPLES_THAT_TELL = 1000


class Problem(NamedTuple):
    """One thing wrong with one line of a manifest. A plain tuple: it travels with a batch, and is often not there."""

    kind: str
    file: str  # of audio
    line: str  # manifest:line
    message: str  # for people, with file and line
    outcome: Outcome = "used"


def suspicions(
    entry: ManifestEntry,
    samples: np.ndarray,
    seconds: Seconds,
    file_seconds: Seconds,
    tolerance: Seconds = LENGTH_TOLERANCE,
) -> list[Problem]:
    """What is suspicious about samples (S) that were found for an entry, so many seconds of them."""
    length = length_problem(entry, seconds, file_seconds, tolerance)
    found = [] if length is None else [length]
    if _is_constant(samples[:_SAMPLES_THAT_TELL]) and _is_constant(samples):  # the first is nearly always enough
        found.append(problem(entry, "silent", f"is silent: all its samples are {samples[0]:g}"))
    return found


def usable(
    entry: ManifestEntry,
    read: Callable[[], tuple[np.ndarray, list[Problem]]],
    problems: list[Problem],
    *,
    unreadable: UnreadablePolicy,
    suspicious: SuspiciousPolicy,
) -> np.ndarray | None:
    """The samples that `read` finds, or None for an entry to be skipped; what is wrong is added to `problems`."""
    try:
        samples, found = read()
    except AudioError as error:
        if unreadable == "stop":
            raise with_line(error, entry) from error
        problems.append(broken(entry, error, "skipped"))
        return None
    if found and suspicious == "stop":
        raise AudioError(found[0].message, found[0].kind)
    if found and suspicious == "skip":
        problems.append(found[0]._replace(outcome="skipped"))  # the first will do: an utterance counts once
        return None
    problems.extend(found)
    return samples


def length_problem(entry: ManifestEntry, seconds: Seconds, file_seconds: Seconds, tolerance: Seconds) -> Problem | None:
    """Whether fewer seconds were found than the line says, or the file goes on after what should be all of it.

    A line with an offset is a part of its file, which may well go on.
    """
    if entry.duration is None:
        return None
    if seconds < entry.duration - tolerance:
        return problem(entry, "shorter", f"has {seconds:.3f} s, the manifest says {entry.duration:g} s")
    if entry.whole_file and file_seconds > entry.duration + tolerance:
        return problem(entry, "longer", f"has {file_seconds:.3f} s, the manifest says {entry.duration:g} s")
    return None


def problem(entry: ManifestEntry, kind: Kind, what: str) -> Problem:
    """A problem of this entry; `what` follows the file's name."""
    name = file_name(entry)
    return Problem(kind, name, entry.line, f"{name}: {what} ({entry.line})")


def with_line(error: AudioError, entry: ManifestEntry) -> AudioError:
    """The same error, saying which line of which manifest named the file."""
    return AudioError(f"{error} ({entry.line})", error.kind)


def broken(entry: ManifestEntry, error: AudioError, outcome: Outcome) -> Problem:
    """The problem that kept an entry from being read."""
    return Problem(error.kind, file_name(entry), entry.line, str(with_line(error, entry)), outcome)


def giving_up(problems: Sequence[Problem]) -> AudioError:
    """The error after so many entries in a row that were skipped."""
    return AudioError(f"{problems[-1].message}; neither could the files before it be used, giving up")


def file_name(entry: ManifestEntry) -> str:
    """The entry's file, or the first of several."""
    return entry.audio_file if isinstance(entry.audio_file, str) else entry.audio_file[0]


def count_by_kind(kinds: Iterable[str]) -> str:
    """`2 unreadable, 1 silent`, in the order of KINDS."""
    counts = Counter(kinds)
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])


class ProblemWarnings:
    """Names the first problems of a process in its log, each once: thousands would drown everything else."""

    def __init__(self, most: int = 20) -> None:
        self.most = most
        self._named: set[Problem] = set()

    def warn(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            if problem not in self._named and len(self._named) < self.most:
                self._named.add(problem)
                log.warning("%s; %s", problem.message, problem.outcome)
                if len(self._named) == self.most:
                    log.warning("further problems with audio are counted but not named here")


def _is_constant(samples: np.ndarray) -> bool:
    return bool(samples.min() == samples.max())
