"""Files of a run's folder, which may come from anybody: regular, inside the folder, and not larger than a run's are.

A page is sent around. A link in a foreign folder must not put a private file of this machine into it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nest_ssl.checkpoint.config import LARGEST_CONFIG
from nest_ssl.checkpoint.inspection import Refused, refuse_sprawl
from nest_ssl.config.foreign_yaml import refuse_hostile_yaml
from nest_ssl.errors import NestError, one_line
from nest_ssl.regular_file import open_regular

_MOST_VALUES = 100_000  # of a configuration


def open_inside(path: Path, folder: Path, most: int) -> io.BufferedReader:
    """Open a file of at most so many bytes that is in the folder, not elsewhere behind a link."""
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise NestError(f"{path}: is a link that leaves the folder of the run; it is not read")
        file = open_regular(path)
    except (OSError, RuntimeError) as error:  # links in a circle are one or the other
        raise NestError(f"{path}: {one_line(getattr(error, 'strerror', None) or error)}") from error
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if size > most:
        file.close()
        raise NestError(f"{path}: has {size} bytes; at most {most} are read")
    return file


def read_inside(path: Path, folder: Path, most: int) -> bytes:
    """The content of such a file."""
    with open_inside(path, folder, most) as file:
        return file.read(most)


def read_config(path: Path, folder: Path) -> dict[str, Any]:
    """A configuration as plain values, references left as text."""
    content = read_inside(path, folder, LARGEST_CONFIG)
    try:
        refuse_hostile_yaml(path)
        config = OmegaConf.to_container(OmegaConf.create(content.decode("utf-8")), resolve=False)
        refuse_sprawl(config, _MOST_VALUES)
    except (NestError, Refused) as error:
        raise NestError(f"{path}: {one_line(error).removeprefix(f'{path}: ')}") from error
    except Exception as error:  # YAML and OmegaConf have many
        raise NestError(f"{path}: cannot be read as a configuration: {one_line(error)}") from error
    return config if isinstance(config, dict) else {}  # type: ignore[return-value]
