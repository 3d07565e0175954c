"""Find the audio files of folders, in the same order on every machine, and convert those that only ffmpeg reads.

A file may be hostile: ffmpeg runs without a shell, may open only this file by the `file` protocol and only containers
that name no other files, and has limits of time and length.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nest_ssl.atomic import atomic_write
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.data.manifest import stable_hash
from nest_ssl.errors import AudioError, NestError, one_line

# Suffixes of what libsndfile or ffmpeg reads; other files are not tried.
SUFFIXES = frozenset(
    (
        *(".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".w64", ".rf64", ".sph"),
        ".caf",  # codespell:ignore caf
        *(".m4a", ".m4b", ".mp4", ".mov", ".aac", ".webm", ".mka", ".mkv", ".wma", ".amr", ".3gp", ".ac3"),
        *(".wv", ".ape", ".tta", ".dsf"),
    )
)

_MOST_SECONDS_OF_WORK = 1800
_MOST_SECONDS_OF_AUDIO = 24 * 3600
# Without playlists (hls, concat, sdp), which open the files that they name.
_CONTAINERS = (
    *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "ogg", "mp3", "aac", "asf", "amr", "wav", "w64"),
    *("flac", "aiff", "au", "ac3", "eac3", "wv", "ape", "tta", "dsf", "nistsphere"),
    "caf",  # codespell:ignore caf
)


@dataclass(frozen=True)
class AudioName:
    """An audio file, and its path relative to the given folder."""

    file: str
    name: str  # with forward slashes
    folder: str  # a unique name of the given folder


def read_folders(folders: Sequence[Path], without: Path | None = None) -> tuple[list[AudioName], Counter[str]]:
    """Return all audio files below the folders, also through links, and the number of other files by suffix.

    Hidden files and those below `without` are skipped.
    """
    audio, others, seen = list[AudioName](), Counter[str](), set[str]()
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
                    audio.append(AudioName(str(place / name), (below / name).as_posix(), unique))
                else:
                    others[suffix or name] += 1
    return audio, others


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


def find_ffmpeg() -> str | None:
    """Return the path of the program, None if it is not installed."""
    return shutil.which("ffmpeg")


def convert(source: Path, target: Path, program: str) -> None:
    """Write the first audio stream of a file as 16 kHz FLAC with all its channels; raise AudioError on failure."""
    with atomic_write(target) as temporary:
        command = [
            *(program, "-nostdin", "-hide_banner", "-loglevel", "error", "-xerror", "-threads", "1"),
            *("-protocol_whitelist", "file", "-format_whitelist", ",".join(_CONTAINERS)),
            *("-i", f"file:{source.absolute()}", "-map", "0:a:0", "-vn", "-sn", "-dn", "-map_metadata", "-1"),
            *("-t", str(_MOST_SECONDS_OF_AUDIO), "-ar", str(SAMPLE_RATE), "-sample_fmt", "s16"),
            *("-f", "flac", "-y", f"file:{temporary.absolute()}"),
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_MOST_SECONDS_OF_WORK,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AudioError(f"{source}: ffmpeg needs more than {_MOST_SECONDS_OF_WORK} s for it") from None
        except OSError as error:
            raise AudioError(f"{source}: ffmpeg cannot be run: {one_line(error.strerror or error)}") from None
        if done.returncode or done.stderr:
            said = done.stderr.decode("utf-8", "replace").replace(f"file:{source.absolute()}: ", "").splitlines()
            raise AudioError(f"{source}: ffmpeg cannot read it: {one_line(said[-1] if said else done.returncode)}")
