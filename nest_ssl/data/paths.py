"""Where the files that configurations and manifests name are to be found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import nest_ssl

PROJECT_NAME = "nest_ssl_project"  # what users call the repository's root
PROJECT_ROOT = Path(nest_ssl.__file__).resolve().parents[1]


def resolve_path(name: str, folder: str = "") -> str:
    """A relative path is looked up in `folder`, then in the working directory; the first existing file wins.

    `nest_ssl_project/...` that exists in neither stands for the working directory or the project's own folder. A path
    that exists nowhere is returned as it would be opened, so that the error names it.
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
    """One name for a file, however its path is spelled; of links, those of folders are followed."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100
    return os.path.normcase(f"{_real_folder(folder)}/{name}")


@lru_cache(maxsize=4096)  # folders; the disk is asked once for each
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def split_paths(value: str | Sequence) -> list[str]:
    """Flatten what a configuration may say: one path, several separated by commas, or (nested) lists of those."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [path for part in value for path in split_paths(part)]
