"""How a run's configuration differs from the shipped one, and which of the differences its machine made.

A run writes what its machine adjusted into environment.json; for older runs, all differences look alike.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import escape
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nest_ssl.apps.pages.text import Words
from nest_ssl.apps.report.run import Run
from nest_ssl.config.compose import compose
from nest_ssl.config.machine import Adjustment
from nest_ssl.errors import ConfigError

ABSENT = object()  # the value of a key that one side does not have
ADJUSTED = "adjusted"  # the field of environment.json
_FIELDS = {"key", "asked", "used", "reason"}
REASONS = {  # of nest_ssl/config/machine.py; other reasons are shown as the run wrote them
    "there is no GPU that PyTorch can use": "没有 PyTorch 可用的 GPU",
    "the quantizer's codebooks are float64, which Apple's GPU does not have": "码本是 float64，苹果的 GPU 不支持",
    "without a GPU, one process trains on all cores": "没有 GPU 时，一个进程用所有核心训练",
    "one process has nobody to share with": "只有一个进程，无需分布式",
    "Windows has no NCCL": "Windows 没有 NCCL",
    "one process has all statistics": "只有一个进程，统计量本来就是全部的",
    "PyTorch has it for GPUs only": "PyTorch 只在 GPU 上支持",
    "this hardware does not multiply bfloat16": "该硬件不支持 bfloat16 乘法",
    "half precision is for GPUs": "半精度只适用于 GPU",
    "it speeds up copies to a GPU only": "只能加快向 GPU 的拷贝",
}


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
    """Return every configuration of the folder, alone and with every size."""
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
        except (ConfigError, OmegaConfBaseException):  # a user's own file may be incomplete
            continue
    return presets


def nearest_preset(config: Mapping[str, Any], presets: list[Preset]) -> tuple[Preset, list[Change]] | None:
    """Return the preset with the fewest changes; of several, the first, which is the plainest."""
    if not config or not presets:
        return None
    candidates = [(preset, changes(preset.config, config)) for preset in presets]
    return min(candidates, key=lambda candidate: len(candidate[1]))


def changes(before: Mapping[str, Any], after: Mapping[str, Any], also: Container[str] = ()) -> list[Change]:
    """Return the keys whose values differ, and those in `also`, in their order; null and absent are the same."""
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
    """Return the name that `+size=...` gives a run."""
    name = base.get("name")
    return {"name": f"{name}-{size}"} if isinstance(name, str) else {}


def _plain(config: Any) -> dict[str, Any]:
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def adjustments_of(run: Run) -> dict[str, Adjustment]:
    """Return the adjustments by key, without those that do not match the configuration."""
    records = run.environment.get(ADJUSTED)
    known = [of for of in records if isinstance(of, dict) and of.keys() >= _FIELDS] if isinstance(records, list) else []
    return {
        str(of["key"]): Adjustment(str(of["key"]), of["asked"], of["used"], str(of["reason"]))
        for of in known
        if of["used"] is not None and run.setting(str(of["key"])) == of["used"]
    }


def asked_for(config: Mapping[str, Any], adjustments: Mapping[str, Adjustment]) -> dict[str, Any]:
    """Return the configuration before its machine adjusted it."""
    asked = copy.deepcopy(dict(config))
    for key, adjustment in adjustments.items():
        *parents, name = key.split(".")
        node = asked
        for parent in parents:
            node = node[parent]
        node[name] = adjustment.old
    return asked


def reason_words(reason: str) -> Words:
    return Words(escape(reason), escape(REASONS.get(reason, reason)))
