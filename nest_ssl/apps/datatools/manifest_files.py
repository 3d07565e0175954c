"""Read, copy and name manifests; each checked manifest gets a clean one of its own, so that sets are never mixed."""

from __future__ import annotations

import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from nest_ssl.atomic import atomic_write
from nest_ssl.data.manifest_lines import ManifestRow, line_blocks, parse_json, parse_rows, parse_value
from nest_ssl.data.paths import resolve_path
from nest_ssl.errors import ManifestError, NestError
from nest_ssl.regular_file import why_not_regular

_BYTES_AT_ONCE = 2**20
_PATH_FIELDS = ("audio_filepath", "audio_filename")


def clean_paths(manifests: Sequence[str], target: str) -> list[Path]:
    """Return where the clean manifest of each goes: into a folder as `NAME.clean.json`; of one, also to a file."""
    if not (target.endswith(("/", os.sep)) or os.path.isdir(target)):  # noqa: PTH112
        if len(manifests) == 1:
            return [Path(target)]
        names = " and ".join(_clean_name(name) for name in manifests[:2]) + ", ..." * (len(manifests) > 2)
        raise NestError(
            f"--write-clean: {target!r} is one file for {len(manifests)} manifests, which would mix them; give a "
            f"folder for {names}, such as --write-clean clean/"
        )
    paths = [Path(target) / _clean_name(name) for name in manifests]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            other = manifests[paths.index(path)]
            both = f"{other} and {manifests[index]}"
            raise NestError(f"--write-clean: {both} would both become {path}; check them separately")
    return paths


def copy_without(manifest: str, dropped: np.ndarray, target: Path, copy: IO[bytes]) -> None:
    """Copy all lines of a manifest but those with these numbers, in ascending order, to the open file of `target`.

    Lines are copied byte for byte. Only if the copy is in another folder are paths relative to the manifest rewritten,
    so that they name the same file.
    """
    folders = [os.path.realpath(folder) for folder in (Path(manifest).parent, target.parent)]
    move = None if folders[0] == folders[1] else (folders[0], folders[1])
    for first, content in line_blocks(manifest, _BYTES_AT_ONCE):
        lines = (content.removeprefix(BOM_UTF8) if first == 1 else content).splitlines(keepends=True)
        here = dropped[np.searchsorted(dropped, first) : np.searchsorted(dropped, first + len(lines))]
        for number in here[::-1]:
            del lines[number - first]
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            lines.append(b"\n")
        copy.writelines(lines if move is None else _moved(lines, *move))


def manifest_file(name: str) -> str:
    """Return the file of a manifest; raise ManifestError if it is not a regular file."""
    file = resolve_path(name)
    reason = why_not_regular(file)
    if reason is not None:
        raise ManifestError(f"{name}: {reason}; give the path of a JSON-lines manifest")
    return file


def read_entries(file: str) -> Iterator[tuple[int, dict[str, Any], ManifestRow]]:
    """Yield number, JSON value and row of every line; raise ManifestError at the first one that is no entry."""
    for number, value in parse_rows(file, key="manifest"):
        try:
            yield number, value, parse_value(value)
        except ValueError as error:
            raise ManifestError(f"{file}:{number}: {error}") from None


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears when the block ends without an error."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(stack.enter_context(atomic_write(path)).open("wb"))
        except OSError as error:
            raise NestError(f"{path}: cannot be written: {error.strerror or error}") from None
        yield file


def _moved(lines: Sequence[bytes], old: str, new: str) -> Iterator[bytes]:
    for line in lines:
        try:
            value = parse_json(line)
        except ValueError:  # blank, or a line that the check ignores
            yield line
            continue
        changed = {name: _moved_path(value[name], old, new) for name in _PATH_FIELDS if name in value}
        same = all(value[name] == path for name, path in changed.items())
        yield line if same else json_line({**value, **changed})


def _moved_path(path: str | list[str], old: str, new: str) -> str | list[str]:
    """Return the path of the same file relative to another folder."""
    if isinstance(path, list):
        return [str(_moved_path(each, old, new)) for each in path]
    found = resolve_path(path, old)
    if found == resolve_path(path):  # absolute, or found from the working directory
        return path
    return path_from(new, found)


def path_from(folder: str, file: str) -> str:
    """Return the path of a file relative to a folder, with forward slashes."""
    try:
        return Path(os.path.relpath(file, folder)).as_posix()
    except ValueError:  # another drive of Windows
        return Path(file).as_posix()


def json_line(row: dict[str, Any]) -> bytes:
    """Return one line of a manifest."""
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return json.dumps(row).encode() + b"\n"


def _clean_name(manifest: str) -> str:
    stem, suffix = split_name(Path(manifest))
    return f"{stem}.clean{suffix}"


def split_name(manifest: Path) -> tuple[str, str]:
    """Return stem and suffix of a manifest's name, such as `train` and `.json`."""
    stem = manifest.name.removesuffix(".json").removesuffix(".jsonl")
    return stem, manifest.name[len(stem) :] or ".json"
