"""Configuration files that may come from anywhere, looked at when Hydra reads them.

Hydra builds nothing from a file and its YAML makes no Python objects. But it imports the packages and modules that
`hydra.searchpath` names, and aliases or references to what holds more of them unfold beyond any memory. So only three
kinds of sources are left to it: files below the folder of the configuration, and the two that Hydra adds itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint.config import LARGEST_CONFIG, MOST_VALUES, refuse_growth, why_hostile
from nest_ssl.compat import (
    hydra_file_name,
    hydra_file_source,
    hydra_package_source,
    hydra_sources,
    hydra_structured_source,
)
from nest_ssl.errors import CheckpointError, ConfigError, one_line
from nest_ssl.regular_file import open_regular

_FileSource: Any = hydra_file_source()
_PackageSource: Any = hydra_package_source()
_StructuredSource: Any = hydra_structured_source()
_MOST_COPIES = 1000  # of one text in others
_HYDRAS_OWN = ("pkg://hydra.conf", "structured://")  # its own files, and what was registered in this process
_REFERENCE = re.compile(r"\$\{[^{}]*?([\w-]*)\]?\}")  # its last word is the name of the key


class CheckedFiles(_FileSource):
    """Hydra's reader of files, for those below one folder, preceded by a look at the file."""

    folder: str  # of the configuration: set by `checked_sources`

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        _refuse_elsewhere(self.path, self.folder, f"hydra.searchpath: {path!r}")

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path) / hydra_file_name(self, config_path)
        _refuse_elsewhere(path, self.folder, f"defaults: {config_path!r}")
        refuse_hostile_yaml(path)
        return super().load_config(config_path)


class HydrasOwnPackage(_PackageSource):
    """Hydra's reader of files in packages, for its own: to find a package, Python runs it."""

    def __init__(self, provider: str, path: str) -> None:
        _refuse_code(path)
        super().__init__(provider, path)


class StructuredConfigSource(_StructuredSource):  # Hydra looks for a source of this name
    """Hydra's reader of what Python modules have registered: none is imported for it."""

    def __init__(self, provider: str, path: str) -> None:
        _refuse_code(path)
        super().__init__(provider, path)


@contextlib.contextmanager
def checked_sources(folder: Path) -> Iterator[None]:
    """While this is open, Hydra reads through the classes above and no others, files from this folder alone."""
    readers = hydra_sources()
    before = dict(readers)
    files: Any = type("CheckedFiles", (CheckedFiles,), {"folder": str(folder)})
    readers.clear()
    readers.update({reader.scheme(): reader for reader in (files, HydrasOwnPackage, StructuredConfigSource)})
    try:
        yield
    finally:
        readers.clear()
        readers.update(before)


def _refuse_code(path: str) -> None:
    if path not in _HYDRAS_OWN:
        raise ConfigError(f"hydra.searchpath: {path!r} refused: it would run Python code; give a folder")


def _refuse_elsewhere(path: Path | str, folder: str, what: str) -> None:
    """Refuse a path outside `folder`, judged by its name: links in the folder belong to its owner and are allowed."""
    found, own = (os.path.abspath(name) for name in (path, folder))  # noqa: PTH100 - `resolve` would follow links
    if Path(own) not in (Path(found), *Path(found).parents):
        raise ConfigError(f"{what} refused: it is not below {folder}; copy the files there")


def refuse_hostile_yaml(path: Path) -> None:
    """Refuse a file that is absurdly long or, once its aliases are followed, large; whether it is YAML, Hydra says."""
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
    plain = OmegaConf.to_container(cfg, resolve=False)
    references: dict[str, list[str]] = {}
    for key, found in _references(plain, ""):
        references[key] = max(references.get(key, []), found, key=len)
    _refuse_text_growth(references, name)
    try:
        refuse_growth(cfg, name, most=2 * _count(plain) + MOST_VALUES)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _references(value: Any, key: str) -> Iterator[tuple[str, list[str]]]:
    """The last words of the keys that each text refers to, by that of its own key."""
    if isinstance(value, str) and "${" in value:
        yield key, _REFERENCE.findall(value)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _references(item, str(name))


def _count(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(_count(item) for item in items) + (len(value) // 100 if isinstance(value, str) else 0)


def _refuse_text_growth(references: dict[str, list[str]], name: str) -> None:
    """How often a text repeats others: those of one last word are taken for one, which is no less than the truth."""
    copies: dict[str, int] = {}

    def count(key: str) -> int:
        if key not in copies:
            copies[key] = 1  # a reference to itself is Hydra's to refuse
            copies[key] = max(1, sum(count(other) for other in references.get(key, [])))
        return copies[key]

    for key in references:
        if count(key) > _MOST_COPIES:
            raise ConfigError(f"{name}: refused: {key} repeats other texts more than {_MOST_COPIES} times")
