"""Paths that configurations and manifests contain: how they are written, and where the files are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import nest_ssl
from nest_ssl.config.schema import split_paths as split_paths
from nest_ssl.errors import ConfigError

PROJECT_NAME = "nest_ssl_project"  # what users call the repository's root
PROJECT_ROOT = Path(nest_ssl.__file__).resolve().parents[1]
DUMMY_SPLITS = ("train", "val", "noise")  # of the corpus that dummy.py makes
DUMMY_MARKER = "corpus.json"  # in its folder, written last: a corpus with the right one is complete
_DUMMY_FOLDER = "dummy_ssl"
_SPEECH_KEYS = ("manifest_filepath", "cuts_path", "shar_path")
# shells and job schedulers interpret braces, so NeMo also accepts _OP_ and _CL_
_RANGE = re.compile(r"(?:\{|\(|\[|<|_OP_)(\d+)\.\.(\d+)(?:\.\.(\d+))?(?:\}|\)|\]|>|_CL_)|\{([^{}]*,[^{}]*)\}")
_ELSEWHERE = re.compile(r"pipe:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_MOST_FILES = 1_000_000


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


def expand_paths(paths: Sequence[str], key: str) -> list[str]:
    """Return every file that the paths name: `audio__OP_0..2_CL_.tar`, also in braces or brackets, names three files.

    `{a,b}.tar` names two. `key` is the configuration key of the paths, for errors.
    """
    for path in paths:
        if _ELSEWHERE.match(path):
            raise ConfigError(f"{key}: is {path!r}; expected a file; commands and URLs are not read, copy it here")
    expanded = list(islice((name for path in paths for name in _expanded(path)), _MOST_FILES + 1))
    if len(expanded) > _MOST_FILES:
        raise ConfigError(f"{key}: names more than {_MOST_FILES} files: {paths[0]!r}; check its ranges")
    return expanded


def _expanded(path: str) -> Iterator[str]:
    found = _RANGE.search(path)
    if found is None:
        yield path
        return
    head, tail = path[: found.start()], path[found.end() :]
    for name in found[4].split(",") if found[4] is not None else _numbers(*found.group(1, 2, 3)):
        for rest in _expanded(tail):
            yield f"{head}{name}{rest}"


def _numbers(first: str, last: str, step: str | None) -> Iterator[str]:
    is_padded = any(number[0] == "0" and len(number) > 1 for number in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    stride = max(1, int(step or 1))
    up = int(last) >= int(first)
    for number in range(int(first), int(last) + (1 if up else -1), stride if up else -stride):
        yield f"{number:0{width}d}"


def real_name(path: str) -> str:
    """Return one name for all spellings of a file's path; links to folders are followed, links to files are not."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100
    return os.path.normcase(f"{_real_folder(folder)}/{name}")


@lru_cache(maxsize=4096)  # folders; the disk is asked once for each
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def speech_paths(node: Mapping[str, Any] | None) -> list[str]:
    """Return the manifests, cut sets and Shar folders that a plain `*_ds` node names."""
    return [path for text in texts_in([(node or {}).get(key) for key in _SPEECH_KEYS]) for path in split_paths(text)]


def is_generated(manifest: str) -> bool:
    """Return whether this path is a manifest of the dummy corpus, in any folder, whether or not it exists."""
    path = Path(resolve_path(manifest))
    names = [f"{split}_manifest.json" for split in DUMMY_SPLITS]
    return path.name in names and (path.parent.name == _DUMMY_FOLDER or (path.parent / DUMMY_MARKER).is_file())


def texts_in(value: Any) -> Iterator[str]:
    """Yield every string in (nested) lists, which may hold weights too, and in the values of mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts_in(part)
    elif isinstance(value, Mapping):
        yield from texts_in(list(value.values()))


def entries_of(value: Any) -> list[Any]:
    """The data sets that a key lists: `a,b`, `[a, b]` and NeMo's `[[a, b]]` are two; an entry may be a list itself."""
    if isinstance(value, str):
        return split_paths(value)
    return value[0] if len(value) == 1 and not isinstance(value[0], str) else value
