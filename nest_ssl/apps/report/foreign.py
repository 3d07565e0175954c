"""Safe reading of a run's folder from elsewhere: only regular files inside the folder, of limited size.

Pages are shared, so a link in such a folder must not copy a private file of this machine into a page.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nest_ssl.checkpoint.config import LARGEST_CONFIG
from nest_ssl.checkpoint.inspection import refuse_sprawl
from nest_ssl.config.foreign_yaml import refuse_hostile_yaml
from nest_ssl.errors import NestError, one_line
from nest_ssl.regular_file import open_regular

_LARGEST_JSON = 16 * 2**20  # bytes
_MOST_VALUES = 100_000  # of a configuration


def open_inside(path: Path, folder: Path, most: int) -> io.BufferedReader:
    """Open a file inside the folder that has at most `most` bytes; refuse a link that leaves the folder."""
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise NestError(f"{path}: is a link that leaves the folder of the run; it is not read")
        file = open_regular(path)
    except (OSError, RuntimeError) as error:  # a circle of links raises either
        raise NestError(f"{path}: {one_line(getattr(error, 'strerror', None) or error)}") from error
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if size > most:
        file.close()
        raise NestError(f"{path}: has {size} bytes; at most {most} are read")
    return file


def read_json(path: Path, folder: Path) -> dict[str, Any]:
    """Return a JSON object; empty if the file is missing or incomplete."""
    if not path.exists():
        return {}
    with open_inside(path, folder, _LARGEST_JSON) as file:
        try:
            content = json.loads(file.read())
        except (ValueError, RecursionError):
            return {}
    return content if isinstance(content, dict) else {}


def read_config(path: Path, folder: Path) -> dict[str, Any]:
    """Return a configuration as plain values, with references as text; empty if the file is missing."""
    if not path.exists():
        return {}
    with open_inside(path, folder, LARGEST_CONFIG) as file:
        content = file.read()
    try:
        refuse_hostile_yaml(path)
        config = OmegaConf.to_container(OmegaConf.create(content.decode("utf-8")), resolve=False)
        refuse_sprawl(config, _MOST_VALUES)
    except NestError:
        raise
    except Exception as error:  # YAML and OmegaConf raise many kinds
        raise NestError(f"{path}: cannot be read as a configuration: {one_line(error)}") from error
    return config if isinstance(config, dict) else {}  # type: ignore[return-value]
