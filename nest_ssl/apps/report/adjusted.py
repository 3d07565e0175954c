"""What the machine of a run adjusted in its configuration, told apart from what somebody changed.

The run writes it into environment.json; runs of before it did have none, and all of their differences look alike.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from nest_ssl.apps.pages.text import Words, escaped
from nest_ssl.apps.report.run import Run
from nest_ssl.config.machine import Adjustment

ADJUSTED = "adjusted"  # the field of environment.json
_FIELDS = {"key", "asked", "used", "reason"}
REASONS = {  # of nest_ssl/config/machine.py; others are shown as the run wrote them
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


def adjustments_of(run: Run) -> dict[str, Adjustment]:
    """By key; without those that the configuration beside them does not know."""
    records = run.environment.get(ADJUSTED)
    known = [of for of in records if isinstance(of, dict) and of.keys() >= _FIELDS] if isinstance(records, list) else []
    return {
        str(of["key"]): Adjustment(str(of["key"]), of["asked"], of["used"], str(of["reason"]))
        for of in known
        if of["used"] is not None and run.setting(str(of["key"])) == of["used"]
    }


def asked_for(config: Mapping[str, Any], adjustments: Mapping[str, Adjustment]) -> dict[str, Any]:
    """The configuration as it was before its machine adjusted it."""
    asked = copy.deepcopy(dict(config))
    for key, adjustment in adjustments.items():
        *parents, name = key.split(".")
        node = asked
        for parent in parents:
            node = node[parent]
        node[name] = adjustment.old
    return asked


def reason_words(reason: str) -> Words:
    return Words(escaped(reason), escaped(REASONS.get(reason, reason)))
