"""Configuration files that may come from anywhere, checked when Hydra reads them.

Hydra builds nothing from a file, and its YAML makes no Python objects. But it imports the packages and modules that
`hydra.searchpath` names, and a few aliases or references can unfold to more than any memory holds. So Hydra may read
only files below the folder of the configuration, and its own two sources.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint.config import LARGEST_CONFIG, MOST_VALUES, refuse_growth, why_hostile
from nest_ssl.compat import hydra_file_name, hydra_sources
from nest_ssl.errors import CheckpointError, ConfigError, one_line
from nest_ssl.regular_file import open_regular

_MOST_COPIES = 1000  # of one text in others
_HYDRAS_OWN = ("pkg://hydra.conf", "structured://")  # its own files, and what was registered in this process
_REFERENCE = re.compile(r"\$\{[^{}]*?([\w-]*)\]?\}")  # its last word is the name of the key


@contextlib.contextmanager
def checked_sources(folder: Path) -> Iterator[None]:
    """Within the block, let Hydra read only checked files below this folder and its own sources."""
    readers = hydra_sources()
    before = dict(readers)
    files = _checked_files(before["file"], str(folder))
    readers.clear()
    readers.update(file=files, pkg=_hydras_own(before["pkg"]), structured=_hydras_own(before["structured"]))
    try:
        yield
    finally:
        readers.clear()
        readers.update(before)


def _checked_files(source: Any, folder: str) -> Any:
    """Return Hydra's reader of files, which checks each file before it reads it."""

    class CheckedFiles(source):
        def __init__(self, provider: str, path: str) -> None:
            super().__init__(provider, path)
            _refuse_elsewhere(self.path, folder, f"hydra.searchpath: {path!r}")

        def load_config(self, config_path: str) -> ConfigResult:
            path = Path(self.path) / hydra_file_name(self, config_path)
            _refuse_elsewhere(path, folder, f"defaults: {config_path!r}")
            refuse_hostile_yaml(path)
            return super().load_config(config_path)

    return CheckedFiles


def _hydras_own(source: Any) -> Any:
    """Return one of Hydra's readers that refuses other packages and modules: to find them, Python runs them."""

    class HydrasOwn(source):
        def __init__(self, provider: str, path: str) -> None:
            if path not in _HYDRAS_OWN:
                raise ConfigError(f"hydra.searchpath: {path!r} refused: it would run Python code; give a folder")
            super().__init__(provider, path)

    HydrasOwn.__name__ = source.__name__  # by which Hydra finds it
    return HydrasOwn


def _refuse_elsewhere(path: Path | str, folder: str, what: str) -> None:
    """Refuse a path outside `folder`, judged by its name: links in the folder belong to its owner and are allowed."""
    found, own = (os.path.abspath(name) for name in (path, folder))  # noqa: PTH100 - `resolve` would follow links
    if not Path(found).is_relative_to(own):
        raise ConfigError(f"{what} refused: it is not below {folder}; copy the files there")


def refuse_hostile_yaml(path: Path) -> None:
    """Refuse a file that is too long, or too large once its aliases are followed; Hydra checks that it is YAML."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a YAML file") from None
    with file:
        content = file.read(LARGEST_CONFIG + 1)
    if len(content) > LARGEST_CONFIG:
        raise ConfigError(f"{path}: refused: {path.stat().st_size} bytes; at most {LARGEST_CONFIG} are read")
    reason = why_hostile(content.decode("utf-8", errors="replace"), aliases=True)
    if reason is not None:
        raise ConfigError(f"{path}: refused: {one_line(reason)}")


def refuse_unfolding(cfg: DictConfig, name: str) -> None:
    """Refuse references that make a configuration grow beyond bounds when they are resolved."""
    values = list(_values(OmegaConf.to_container(cfg, resolve=False)))
    _refuse_text_growth(values, name)
    written = sum(1 + (len(value) // 100 if isinstance(value, str) else 0) for _, value in values)
    try:
        refuse_growth(cfg, name, most=2 * written + MOST_VALUES)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a value and everything in it, each with the last word of its key."""
    yield key, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _values(item, str(name))


def _refuse_text_growth(values: Iterable[tuple[str, Any]], name: str) -> None:
    """Refuse text that repeats others too often; keys with the same last word count as one, so none is missed."""
    references: dict[str, list[str]] = {}  # the last words of the keys that a text refers to
    for key, value in values:
        if isinstance(value, str) and "${" in value:
            references[key] = max(references.get(key, []), _REFERENCE.findall(value), key=len)
    copies: dict[str, int] = {}

    def count(key: str) -> int:
        if key not in copies:
            copies[key] = 1  # Hydra refuses a reference to itself
            copies[key] = max(1, sum(count(other) for other in references.get(key, [])))
        return copies[key]

    for key in references:
        if count(key) > _MOST_COPIES:
            raise ConfigError(f"{name}: refused: {key} repeats other texts more than {_MOST_COPIES} times")
