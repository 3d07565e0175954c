"""Labels of audio files: texts in files of the same name, or rows of a table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from nest_ssl.apps.datatools.audio_folder import AudioName
from nest_ssl.errors import NestError, nearest, one_line
from nest_ssl.regular_file import check_regular

TEXT_SUFFIXES = (".txt", ".lab")
_PATH_COLUMNS = ("audio_filepath", "audio_filename", "path", "file", "filename", "file_name", "audio", "wav", "id")
_OWN_FIELDS = ("audio_filepath", "audio_filename", "duration", "offset")  # fields of the manifest itself
_MOST_BYTES = 2**20  # of one text


Labels = Callable[[AudioName], dict[str, str]]  # returns fields for the manifest line of a file


def text_beside(audio: AudioName) -> dict[str, str]:
    """Return the text in `x.txt` or `x.lab` beside `x.wav`, if there is one."""
    for suffix in TEXT_SUFFIXES:
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
        for number, row in _read(path):
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


def _read(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
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
