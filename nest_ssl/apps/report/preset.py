"""Which shipped configuration a run began with, and what was changed in it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nest_ssl.config.compose import compose
from nest_ssl.errors import ConfigError

ABSENT = object()  # a side that does not have the key


@dataclass(frozen=True)
class Change:
    """One key and its value on both sides, `ABSENT` where there is none."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Preset:
    """A shipped configuration as one asks for it: `nest_tiny`, or `nest_fast-conformer +size=small`."""

    name: str
    config: dict[str, Any]


def shipped_presets(folder: Path) -> list[Preset]:
    """Every configuration of the folder, alone and with every size."""
    presets = []
    sizes = {path.stem: OmegaConf.load(path) for path in sorted(folder.glob("size/*.yaml"))}
    for path in sorted(folder.glob("*.yaml")):
        try:
            base = compose(folder.resolve(), path.stem, [])
            presets.append(Preset(path.stem, _plain(base)))
            presets += [
                Preset(f"{path.stem} +size={name}", _plain(OmegaConf.merge(base, size, _named(base, name))))
                for name, size in sizes.items()
            ]
        except (ConfigError, OmegaConfBaseException):  # a file that somebody put there
            continue
    return presets


def nearest_preset(config: Mapping[str, Any], presets: list[Preset]) -> tuple[Preset, list[Change]] | None:
    """The one with the fewest changes; the first, plainest of those that tie."""
    if not config or not presets:
        return None
    candidates = [(preset, changes(preset.config, config)) for preset in presets]
    return min(candidates, key=lambda candidate: len(candidate[1]))


def changes(before: Mapping[str, Any], after: Mapping[str, Any], also: Container[str] = ()) -> list[Change]:
    """Keys whose values differ, and those in `also`, in the order of the configuration; null is as good as absent."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [
        Change(key, old.get(key, ABSENT), new.get(key, ABSENT))
        for key in dict.fromkeys([*old, *new])
        if key in also or old.get(key) != new.get(key)
    ]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _named(base: DictConfig, size: str) -> dict[str, str]:
    """The name of a run of this size, as `+size=...` makes it."""
    name = base.get("name")
    return {"name": f"{name}-{size}"} if isinstance(name, str) else {}


def _plain(config: Any) -> dict[str, Any]:
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]
