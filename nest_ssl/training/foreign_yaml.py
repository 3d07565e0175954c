"""Configuration files that may come from anywhere, looked at when Hydra reads them.

Hydra builds nothing from a file and its YAML makes no Python objects. But it imports the packages that
`hydra.searchpath` names, and aliases or references to what holds more of them unfold beyond any memory.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint.config import LARGEST_CONFIG, refuse_growth
from nest_ssl.checkpoint.inspection import DEEPEST
from nest_ssl.checkpoint.yaml_numbers import odd_number
from nest_ssl.errors import CheckpointError, ConfigError, one_line

_MOST_VALUES = 10_000  # beyond those that are written out: lists of manifests can be long
_MOST_COPIES = 1000  # of one text in others
_HYDRAS_OWN = "pkg://hydra.conf"
_REFERENCE = re.compile(r"\$\{[^{}]*?([\w-]*)\]?\}")  # its last word is the name of the key


class CheckedFiles(FileConfigSource):
    """Hydra's reader of files, preceded by a look at the file."""

    def load_config(self, config_path: str) -> ConfigResult:
        refuse_hostile_yaml(Path(self.path) / self._normalize_file_name(config_path))
        return super().load_config(config_path)


class HydrasOwnPackage(ImportlibResourcesConfigSource):
    """Hydra's reader of files in packages, for its own: to find a package, Python runs it."""

    def __init__(self, provider: str, path: str) -> None:
        if path != _HYDRAS_OWN:
            raise ConfigError(f"hydra.searchpath: {path!r} refused: it would run a package; give a folder")
        super().__init__(provider, path)


@contextlib.contextmanager
def checked_sources() -> Iterator[None]:
    """While this is open, Hydra reads files through the classes above."""
    Plugins.instance()  # which fills the registry, once in a process
    readers = SourcesRegistry.instance().types
    before = dict(readers)
    readers.update({reader.scheme(): reader for reader in (CheckedFiles, HydrasOwnPackage)})
    try:
        yield
    finally:
        readers.update(before)


def refuse_hostile_yaml(path: Path) -> None:
    """Refuse a file that is absurdly long or, once its aliases are followed, large; whether it is YAML, Hydra says."""
    if not path.is_file():
        return
    if path.stat().st_size > LARGEST_CONFIG:
        raise ConfigError(f"{path}: refused: {path.stat().st_size} bytes; at most {LARGEST_CONFIG} are read")
    content = path.read_bytes()
    if b"*" in content and b"&" in content:
        _refuse_alias_growth(content, path)
    wrong = odd_number(content.decode("utf-8", errors="replace"))
    if wrong is not None:
        raise ConfigError(f"{path}: {one_line(wrong)}")


def _refuse_alias_growth(content: bytes, path: Path) -> None:
    sizes: dict[str | None, int] = {}  # of what each anchor stands for
    within: list[tuple[str | None, int]] = [(None, 0)]  # open tables and lists: anchor, values so far
    written = 0
    for event in yaml.parse(content, Loader=yaml.SafeLoader):
        size, written = 0, written + 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in dict(within):
                raise ConfigError(f"{path}: refused: alias *{event.anchor} stands for what it is in")
            size = sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.ScalarEvent):
            size = sizes[event.anchor] = 1 + len(event.value) // 100
        elif isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = within.pop()
            sizes[anchor] = size
        within[-1] = (within[-1][0], within[-1][1] + size)
        if within[-1][1] > _MOST_VALUES + written:
            raise ConfigError(f"{path}: refused: its aliases unfold to more than {_MOST_VALUES} values")
        if len(within) > DEEPEST:
            raise ConfigError(f"{path}: refused: nested more than {DEEPEST} deep")


def refuse_unfolding(cfg: DictConfig, name: str) -> None:
    """Refuse references that make a configuration grow beyond bounds when they are resolved."""
    plain = OmegaConf.to_container(cfg, resolve=False)
    references: dict[str, list[str]] = {}
    for key, found in _references(plain, ""):
        references[key] = max(references.get(key, []), found, key=len)
    _refuse_text_growth(references, name)
    try:
        refuse_growth(cfg, name, most=2 * _count(plain) + _MOST_VALUES)
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
