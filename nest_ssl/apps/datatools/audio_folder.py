"""Find the audio files of folders, in the same order on every machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nest_ssl.data.manifest import stable_hash
from nest_ssl.errors import NestError

# Suffixes of what libsndfile or ffmpeg reads; other files are not tried.
SUFFIXES = frozenset(
    (
        *(".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".w64", ".rf64", ".sph"),
        ".caf",  # codespell:ignore caf
        *(".m4a", ".m4b", ".mp4", ".mov", ".aac", ".webm", ".mka", ".mkv", ".wma", ".amr", ".3gp", ".ac3"),
        *(".wv", ".ape", ".tta", ".dsf"),
    )
)


@dataclass(frozen=True)
class AudioName:
    """An audio file, and its path relative to the given folder."""

    file: str
    name: str  # with forward slashes
    folder: str  # a unique name of the given folder


@dataclass
class FolderContent:
    """Audio files, and the number of other files by suffix."""

    audio: list[AudioName] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)


def read_folders(folders: Sequence[Path], without: Path | None = None) -> FolderContent:
    """Find all audio files below the folders, also through links; skip hidden ones and those below `without`."""
    content, seen = FolderContent(), set[str]()
    skipped = None if without is None else os.path.realpath(without)
    for folder in folders:
        if not folder.is_dir():
            raise NestError(f"{folder}: is not a folder; give folders of audio files")
        for place, names in _walk(folder, skipped, seen):
            below = place.relative_to(folder)
            unique = f"{folder.resolve().name}-{stable_hash(str(folder.resolve())) >> 32:08x}"
            for name in names:
                suffix = Path(name).suffix.lower()
                if suffix in SUFFIXES:
                    content.audio.append(AudioName(str(place / name), (below / name).as_posix(), unique))
                else:
                    content.others[suffix or name] += 1
    return content


def _walk(folder: Path, skipped: str | None, seen: set[str]) -> Iterator[tuple[Path, list[str]]]:
    """Yield every folder once, however many links lead to it, with the names of its files."""
    for place, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen or real == skipped:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(place), sorted(name for name in names if not name.startswith("."))


def _refuse(error: OSError) -> None:
    """Raise instead of silently skipping a folder."""
    raise NestError(f"{error.filename}: cannot be read: {error.strerror}")
