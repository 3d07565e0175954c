"""How the configurations of runs differ, and which values a run adjusted to its machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import escape

from nest_ssl.apps.pages.text import Words
from nest_ssl.apps.report.run import Run
from nest_ssl.config.machine import Adjustment

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


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the keys whose values differ, in their order; null and absent are the same."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [
        Change(key, old.get(key, ABSENT), new.get(key, ABSENT))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def adjustments_of(run: Run) -> dict[str, Adjustment]:
    """Return the adjustments by key, without those that do not match the configuration."""
    records = run.environment.get(ADJUSTED)
    known = [of for of in records if isinstance(of, dict) and of.keys() >= _FIELDS] if isinstance(records, list) else []
    return {
        str(of["key"]): Adjustment(str(of["key"]), of["asked"], of["used"], str(of["reason"]))
        for of in known
        if of["used"] is not None and run.setting(str(of["key"])) == of["used"]
    }


def reason_words(reason: str) -> Words:
    return Words(escape(reason), escape(REASONS.get(reason, reason)))
