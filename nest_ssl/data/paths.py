"""Paths that configurations and manifests contain: how they are written, and where the files are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import nest_ssl
from nest_ssl.config.schema import split_paths as split_paths

PROJECT_NAME = "nest_ssl_project"  # what users call the repository's root
PROJECT_ROOT = Path(nest_ssl.__file__).resolve().parents[1]
DUMMY_SPLITS = ("train", "val", "noise")  # of the corpus that dummy.py makes
DUMMY_MARKER = "corpus.json"  # in its folder, written last: a corpus with the right one is complete
_DUMMY_FOLDER = "dummy_ssl"
_SPEECH_KEYS = ("manifest_filepath", "cuts_path", "shar_path")


def resolve_path(name: str, folder: str = "") -> str:
    """Look up a relative path in `folder`, then in the working directory; return the first existing file.

    `nest_ssl_project/...` is also looked up in the working directory and the project's own folder without that prefix.
    A path that exists nowhere is returned as it would be opened, so that the error names it.
    """
    path = os.path.expanduser(name)  # noqa: PTH111 - plain strings: this runs for every item that is read
    if os.path.isabs(path):  # noqa: PTH117
        return path
    candidates = [os.path.join(folder, path), path]  # noqa: PTH118
    first, _, rest = path.replace("\\", "/").partition("/")
    if first == PROJECT_NAME:
        candidates += [rest, str(PROJECT_ROOT / rest)]
    return next((candidate for candidate in candidates if os.path.isfile(candidate)), path)  # noqa: PTH113


def real_name(path: str) -> str:
    """Return one name for all spellings of a file's path; links to folders are followed, links to files are not."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100
    return os.path.normcase(f"{_real_folder(folder)}/{name}")


@lru_cache(maxsize=4096)  # folders; the disk is asked once for each
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def speech_paths(node: Mapping[str, Any] | None) -> list[str]:
    """Return the manifests, cut sets and Shar folders that a plain `*_ds` node names."""
    return [path for text in _texts([(node or {}).get(key) for key in _SPEECH_KEYS]) for path in split_paths(text)]


def is_generated(manifest: str) -> bool:
    """Return whether this path is a manifest of the dummy corpus, in any folder, whether or not it exists."""
    path = Path(resolve_path(manifest))
    names = [f"{split}_manifest.json" for split in DUMMY_SPLITS]
    return path.name in names and (path.parent.name == _DUMMY_FOLDER or (path.parent / DUMMY_MARKER).is_file())


def _texts(value: Any) -> Iterator[str]:
    """Yield every string in (nested) lists, which may hold weights too, and in the values of mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))


def entries_of(value: Any) -> list[Any]:
    """The data sets that a key lists: `a,b`, `[a, b]` and NeMo's `[[a, b]]` are two; an entry may be a list itself."""
    if isinstance(value, str):
        return split_paths(value)
    return value[0] if len(value) == 1 and not isinstance(value[0], str) else value
