"""Errors a user can act on: one line each, saying what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NestError(Exception):
    """Base of every error that is the input's fault; entry points print it without a traceback."""


class ConfigError(NestError):
    """A configuration key or value that cannot be used; the message starts with the key."""


class ManifestError(NestError):
    """A manifest or one of its lines that cannot be used; the message starts with `file:line`."""


class AudioError(NestError):
    """An audio file that cannot be read or used; the message starts with its path, `kind` is of `data/problems.py`."""

    def __init__(self, message: str, kind: str = "unreadable") -> None:
        super().__init__(message)
        self.kind = kind


class ShardError(NestError):
    """A tar file of a data set that is missing or damaged; the message starts with its path."""


class CheckpointError(NestError):
    """A checkpoint or archive that is damaged, unsafe or does not fit the model."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest known word, or an empty string."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""


def one_line(text: object, most: int = 200) -> str:
    """What somebody else says, an exception or a value of a file, as one line of bounded length."""
    line = " ".join(str(text).split()) or type(text).__name__
    return line if len(line) <= most else f"{line[:most]}..."
