"""Find out what this machine can do, and adjust a configuration that was written for another machine.

`adjust` is pure: a configuration and a description of a machine give a list of changes, each with its reason.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from nest_ssl.compat import cpu_multiplies_bf16

_log = logging.getLogger(__name__)
GLOO_DDP = "ddp_gloo"  # registered by run.py: DDP over gloo, the one backend that PyTorch has on Windows
FSDP = "fsdp"  # ShardedStrategy
_NO_GPU = "there is no GPU that PyTorch can use"
_NO_FLOAT64 = "the quantizer's codebooks are float64, which Apple's GPU does not have"
_DATASETS = ("model.train_ds", "model.validation_ds", "model.test_ds")


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that the adjustments depend on; tests can describe any machine."""

    cuda_devices: int = 0
    mps: bool = False
    windows: bool = False
    bf16: bool = False  # the hardware multiplies bfloat16, on the device that training would use

    @classmethod
    def here(cls) -> Machine:
        """The machine that this process runs on."""
        cuda_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return cls(
            cuda_devices=cuda_devices,
            mps=torch.backends.mps.is_available(),
            windows=sys.platform == "win32",
            bf16=torch.cuda.is_bf16_supported(including_emulation=False) if cuda_devices else cpu_multiplies_bf16(),
        )


@dataclass(frozen=True)
class Adjustment:
    """One key that this machine needs at another value, and why."""

    key: str
    old: Any
    new: Any
    reason: str


@dataclass(frozen=True)
class _Plan:
    """The devices of the trainer, after the adjustments found so far."""

    gpu: bool
    processes: int  # on this machine and all others together


def adjust(cfg: DictConfig, machine: Machine) -> list[Adjustment]:
    """Everything in a configuration that would fail, or do harm, on this machine."""
    trainer = cfg.get("trainer") or {}
    device_changes, plan = _settle_devices(trainer, machine)
    changes = [
        *device_changes,
        *_settle_strategy(trainer, machine, plan),
        *_settle_precision(trainer, machine, plan),
        *_settle_pinned_memory(cfg, plan),
    ]
    return [change for change in changes if change.old != change.new]


def fit_to_machine(cfg: DictConfig, machine: Machine) -> list[Adjustment]:
    """Make all adjustments in the configuration, each with a line saying what and why."""
    adjustments = adjust(cfg, machine)
    apply(cfg, adjustments)
    for line in describe(adjustments):
        _log.info("adjusted %s", line)
    return adjustments


def apply(cfg: DictConfig, adjustments: Iterable[Adjustment]) -> None:
    """Make the changes in the configuration."""
    for change in adjustments:
        OmegaConf.update(cfg, change.key, change.new)


def describe(adjustments: Iterable[Adjustment]) -> list[str]:
    """One line for each thing changed; keys that change alike for the same reason share it."""
    lines: dict[tuple[str, str], list[str]] = {}
    for change in adjustments:
        lines.setdefault((f"{_yaml(change.old)} -> {_yaml(change.new)}", change.reason), []).append(change.key)
    return [f"{', '.join(keys)}: {change} ({reason})" for (change, reason), keys in lines.items()]


def _settle_devices(trainer: Any, machine: Machine) -> tuple[list[Adjustment], _Plan]:
    asked = str(trainer.get("accelerator") or "auto")
    devices = trainer.get("devices", "auto")
    nodes = int(trainer.get("num_nodes") or 1)
    usable = asked in ("auto", "gpu", "cuda") and machine.cuda_devices > 0
    if usable or asked not in ("auto", "cpu", "gpu", "cuda", "mps"):
        return [], _Plan(gpu=True, processes=device_count(devices, machine.cuda_devices) * nodes)

    changes = []
    if asked != "cpu" and (asked != "auto" or machine.mps):  # `auto` without any GPU means the CPU already
        reason = _NO_FLOAT64 if machine.mps and asked != "cuda" else _NO_GPU
        changes.append(Adjustment("trainer.accelerator", asked, "cpu", reason))
    count = int(devices) if asked in ("auto", "cpu") and _is_count(devices) else 1
    if devices not in (None, "auto"):
        changes.append(Adjustment("trainer.devices", devices, count, "without a GPU, one process trains on all cores"))
    return changes, _Plan(gpu=False, processes=count * nodes)


def _settle_strategy(trainer: Any, machine: Machine, plan: _Plan) -> list[Adjustment]:
    strategy = trainer.get("strategy") or "auto"
    changes = []
    distributed = str(strategy).startswith("ddp")
    if (distributed or strategy == FSDP) and plan.processes == 1:
        changes.append(Adjustment("trainer.strategy", strategy, "auto", "one process has nobody to share with"))
    elif machine.windows and plan.gpu and plan.processes > 1 and (distributed or strategy == "auto"):
        changes.append(Adjustment("trainer.strategy", strategy, GLOO_DDP, "Windows has no NCCL"))
    if trainer.get("sync_batchnorm") and (plan.processes == 1 or not plan.gpu):
        reason = "one process has all statistics" if plan.processes == 1 else "PyTorch has it for GPUs only"
        changes.append(Adjustment("trainer.sync_batchnorm", True, False, reason))
    return changes


def _settle_precision(trainer: Any, machine: Machine, plan: _Plan) -> list[Adjustment]:
    precision = trainer.get("precision")
    name = str(precision)
    if name.startswith("bf16") and not machine.bf16:
        new = "16-mixed" if plan.gpu else 32
        return [Adjustment("trainer.precision", precision, new, "this hardware does not multiply bfloat16")]
    if name.startswith("16") and not plan.gpu:
        return [Adjustment("trainer.precision", precision, 32, "half precision is for GPUs")]
    return []


def _settle_pinned_memory(cfg: DictConfig, plan: _Plan) -> list[Adjustment]:
    keys = [f"{node}.pin_memory" for node in _DATASETS if OmegaConf.select(cfg, f"{node}.pin_memory")]
    return [] if plan.gpu else [Adjustment(key, True, False, "it speeds up copies to a GPU only") for key in keys]


def _is_count(devices: Any) -> bool:
    return str(devices).isdigit() and int(devices) > 0


def device_count(devices: Any, there: int) -> int:
    """How many GPUs Lightning would take: a count, -1 for all, or a list of indices (also `0,1`)."""
    if isinstance(devices, str) and "," in devices:
        return len([index for index in devices.split(",") if index.strip()])
    if devices in (None, "auto", -1, "-1"):
        return max(1, there)
    return int(devices) if _is_count(devices) else max(1, len(devices))


def _yaml(value: Any) -> str:
    """Return a value as a configuration writes it, so that users can copy it into a command."""
    return OmegaConf.to_yaml(OmegaConf.create({"v": value})).removeprefix("v: ").strip().replace("\n", " ")


def processor() -> tuple[str, set[str]]:
    """The CPU's model and its instruction sets, where the system tells."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                name = value
            elif key in ("flags", "Features"):
                flags = set(value.split())
    return name, flags
