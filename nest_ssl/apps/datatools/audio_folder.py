"""Audio files of folders: find them, convert those that only ffmpeg reads, and find their labels.

A file may be hostile: ffmpeg runs without a shell, may open only this file by the `file` protocol and only containers
that name no other files, and has limits of time and length.
"""

from __future__ import annotations

import csv
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nest_ssl.atomic import atomic_write
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.data.manifest import stable_hash
from nest_ssl.errors import AudioError, NestError, nearest, one_line
from nest_ssl.regular_file import check_regular

# Suffixes of what libsndfile or ffmpeg reads; other files are not tried.
_AUDIO_SUFFIXES = frozenset(
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
_TEXT_SUFFIXES = (".txt", ".lab")
_MOST_BYTES = 2**20  # of one text
_PATH_COLUMNS = ("audio_filepath", "audio_filename", "path", "file", "filename", "file_name", "audio", "wav", "id")
_OWN_FIELDS = ("audio_filepath", "audio_filename", "duration", "offset")  # fields of the manifest itself


@dataclass(frozen=True)
class AudioName:
    """An audio file, and its path relative to the given folder."""

    file: str
    name: str  # with forward slashes
    folder: str  # a unique name of the given folder


Labels = Callable[[AudioName], dict[str, str]]  # returns fields for the manifest line of a file


def read_folders(folders: Sequence[Path], without: Path | None = None) -> tuple[list[AudioName], Counter[str]]:
    """Return all audio files below the folders, also through links, and the number of other files by suffix.

    Hidden files and those below `without` are skipped.
    """
    audio, others, seen = list[AudioName](), Counter[str](), set[str]()
    skipped = None if without is None else os.path.realpath(without)
    for folder in folders:
        if not folder.is_dir():
            raise NestError(f"{folder}: is not a folder; give folders of audio files")
        unique = f"{folder.resolve().name}-{stable_hash(str(folder.resolve())) >> 32:08x}"
        for place, names in _walk(folder, skipped, seen):
            below = place.relative_to(folder)
            for name in names:
                suffix = Path(name).suffix.lower()
                if suffix in _AUDIO_SUFFIXES:
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


def text_beside(audio: AudioName) -> dict[str, str]:
    """Return the text in `x.txt` or `x.lab` beside `x.wav`, if there is one."""
    for suffix in _TEXT_SUFFIXES:
        path = Path(audio.file).with_suffix(suffix)
        if path.is_file():
            try:
                with path.open("rb") as file:
                    text = file.read(_MOST_BYTES).decode("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise NestError(f"{path}: cannot be read as UTF-8 text: {one_line(error)}") from None
            return {"text": " ".join(text.split())}
    return {}


class Table:
    """Rows of a CSV or TSV file with a header, with a column that names the audio file.

    The column holds a path below the folder, a file name, or a file name without suffix.
    """

    def __init__(self, path: Path, column: str | None = None) -> None:
        self.path = path
        self._rows: dict[str, dict[str, str]] = {}
        self._used: dict[str, str] = {}
        for number, row in _read_table(path):
            if not self._rows:
                column = self._column(column, list(row))
            assert column is not None
            key = PurePosixPath(row[column].replace("\\", "/")).as_posix() if row[column] else ""
            if not key or key in self._rows:
                what = f"a second row of {key!r}" if key else f"{column} is empty"
                raise NestError(f"{path}:{number}: {what}; expected one row for each audio file")
            self._rows[key] = {name: value for name, value in row.items() if name not in (column, *_OWN_FIELDS)}
        if not self._rows:
            raise NestError(f"{path}: has no rows; expected a header and a row for each audio file")

    def of(self, audio: AudioName) -> dict[str, str]:
        name = PurePosixPath(audio.name)
        keys = (audio.name, Path(audio.file).as_posix(), str(name.with_suffix("")), name.name, name.stem)
        key = next((key for key in keys if key in self._rows), None)
        if key is None:
            return {}
        other = self._used.setdefault(key, audio.file)
        if other != audio.file:
            raise NestError(f"{self.path}: {key!r} matches both {other} and {audio.file}; give paths below the folder")
        return {name: value for name, value in self._rows[key].items() if value}

    @property
    def unused(self) -> int:
        """The number of rows without audio."""
        return len(self._rows) - len(self._used)

    def _column(self, wanted: str | None, columns: Sequence[str]) -> str:
        known = ", ".join(columns)
        if wanted is not None and wanted not in columns:
            raise NestError(f"--table-column: {self.path} has no {wanted!r}{nearest(wanted, columns)}; it has {known}")
        found = wanted or next((name for name in _PATH_COLUMNS if name in columns), None)
        if found is None:
            raise NestError(f"{self.path}: which column names the audio file? Give --table-column, one of {known}")
        return found


def _read_table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields of every row."""
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            delimiter = max("\t;,", key=header.count)
            file.seek(0)
            is_tsv = delimiter == "\t"  # in TSV, quotation marks are part of the text
            reader = csv.DictReader(
                file,
                delimiter=delimiter,
                strict=not is_tsv,
                quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL,
            )
            for row in reader:
                if None in row or None in row.values():
                    expected = len(reader.fieldnames or ())
                    raise NestError(f"{path}:{reader.line_num}: does not have the {expected} fields of the header")
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NestError(f"{path}: cannot be read as a table: {one_line(error)}") from None
