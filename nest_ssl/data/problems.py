"""Problems of the audio in a manifest: their kinds, and what training does about each.

Unreadable audio cannot be used. Suspicious audio can; NeMo uses it, so by default it is used here too and only
reported. Both healthy and suspicious sets give NeMo's numbers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from nest_ssl.data.manifest_lines import ManifestEntry, Seconds
from nest_ssl.errors import AudioError

log = logging.getLogger(__name__)

BrokenKind = Literal["unreadable", "empty", "not_finite", "channels"]
SuspiciousKind = Literal["silent", "shorter", "longer"]
# found only by `nest-ssl data check`
ListedKind = Literal["bad_line", "duplicate", "overlap", "sample_rate", "narrow_band"]
Kind = Literal[ListedKind, BrokenKind, SuspiciousKind]
Outcome = Literal["used", "skipped", "drew other noise"]  # what training did with it
UnreadablePolicy = Literal["skip", "stop"]
SuspiciousPolicy = Literal["use", "skip", "stop"]

KINDS: tuple[str, ...] = get_args(Kind)

LENGTH_TOLERANCE: Seconds = 0.1  # durations are often rounded, those of MP3 files estimated
_FIRST_SAMPLES = 1000


class Problem(NamedTuple):
    """One problem of one manifest line; a tuple, because batches carry it between processes."""

    kind: str
    file: str  # of audio
    line: str  # manifest:line
    message: str  # with file and line
    outcome: Outcome = "used"


def find_suspicious(
    entry: ManifestEntry,
    samples: np.ndarray,
    seconds: Seconds,
    file_seconds: Seconds,
    tolerance: Seconds = LENGTH_TOLERANCE,
) -> list[Problem]:
    """Return what is suspicious about the samples (S) of an entry, which last so many seconds."""
    length = length_problem(entry, seconds, file_seconds, tolerance)
    found = [] if length is None else [length]
    if _is_constant(samples[:_FIRST_SAMPLES]) and _is_constant(samples):  # the first test is nearly always enough
        found.append(problem(entry, "silent", f"is silent: all its samples are {samples[0]:g}"))
    return found


def skip_unreadable(entry: ManifestEntry, error: AudioError, policy: UnreadablePolicy) -> Problem:
    """Return the problem of an entry that is skipped; raise the error, with the line, if the policy is `stop`."""
    if policy == "stop":
        raise with_line(error, entry) from error
    return broken(entry, error, "skipped")


def may_use(found: Sequence[Problem], policy: SuspiciousPolicy, problems: list[Problem]) -> bool:
    """Return whether audio with these suspicious problems is used, and add them to `problems`; `stop` raises."""
    if found and policy == "stop":
        raise AudioError(found[0].message, found[0].kind)
    if found and policy == "skip":
        problems.append(found[0]._replace(outcome="skipped"))  # only the first: an utterance counts once
        return False
    problems.extend(found)
    return True


def length_problem(entry: ManifestEntry, seconds: Seconds, file_seconds: Seconds, tolerance: Seconds) -> Problem | None:
    """Return a problem if there is less audio than the line says, or if the line means the whole of a longer file."""
    if entry.duration is None:
        return None
    if seconds < entry.duration - tolerance:
        return problem(entry, "shorter", f"has {seconds:.3f} s, the manifest says {entry.duration:g} s")
    if entry.whole_file and file_seconds > entry.duration + tolerance:
        return problem(entry, "longer", f"has {file_seconds:.3f} s, the manifest says {entry.duration:g} s")
    return None


def problem(entry: ManifestEntry, kind: Kind, what: str) -> Problem:
    """Return a problem of this entry; `what` follows the file's name in the message."""
    name = file_name(entry)
    return Problem(kind, name, entry.line, f"{name}: {what} ({entry.line})")


def with_line(error: AudioError, entry: ManifestEntry) -> AudioError:
    """Return the error with the manifest line that named the file."""
    return AudioError(f"{error} ({entry.line})", error.kind)


def broken(entry: ManifestEntry, error: AudioError, outcome: Outcome) -> Problem:
    """Return the problem of an entry that cannot be read."""
    return Problem(error.kind, file_name(entry), entry.line, str(with_line(error, entry)), outcome)


def too_many_skipped(problems: Sequence[Problem]) -> AudioError:
    """Return the error for too many skipped entries in a row."""
    return AudioError(f"{problems[-1].message}; the files before it could not be used either, giving up")


def file_name(entry: ManifestEntry) -> str:
    """Return the entry's file, or the first of several."""
    return entry.audio_file if isinstance(entry.audio_file, str) else entry.audio_file[0]


def count_by_kind(kinds: Iterable[str]) -> str:
    """Return a text such as `2 unreadable, 1 silent`, in the order of KINDS."""
    counts = Counter(kinds)
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])


class ProblemWarnings:
    """Log the first problems of a process, each once; thousands of lines would hide everything else."""

    def __init__(self, most: int = 20) -> None:
        self.most = most
        self._named: set[Problem] = set()

    def warn(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            if problem not in self._named and len(self._named) < self.most:
                self._named.add(problem)
                log.warning("%s; %s", problem.message, problem.outcome)
                if len(self._named) == self.most:
                    log.warning("further problems with audio are counted but not logged here")


def _is_constant(samples: np.ndarray) -> bool:
    return bool(samples.min() == samples.max())
