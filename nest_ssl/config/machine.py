"""Find out what this machine can do, and adjust a configuration that was written for another machine.

`adjust` is pure: a configuration and a description of a machine give a list of changes, each with its reason.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import sys
from collections.abc import Iterable, Iterator
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
_NO_BF16 = "this hardware does not multiply bfloat16"
_DATASETS = ("model.train_ds", "model.validation_ds", "model.test_ds")


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that the adjustments depend on; tests can describe any machine."""

    cuda_devices: int = 0
    mps: bool = False
    windows: bool = False
    gpu_bf16: bool = False  # the GPU multiplies bfloat16 in hardware
    cpu_bf16: bool = False  # so does the processor

    @classmethod
    def here(cls) -> Machine:
        """Return the machine that this process runs on."""
        cuda_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return cls(
            cuda_devices=cuda_devices,
            mps=torch.backends.mps.is_available(),
            windows=sys.platform == "win32",
            gpu_bf16=cuda_devices > 0 and torch.cuda.is_bf16_supported(including_emulation=False),
            cpu_bf16=cpu_multiplies_bf16(),
        )


@dataclass(frozen=True)
class Adjustment:
    """One key that this machine needs at another value, and why."""

    key: str
    old: Any
    new: Any
    reason: str


def adjust(cfg: DictConfig, machine: Machine) -> list[Adjustment]:
    """Return everything in a configuration that would fail, or do harm, on this machine."""
    changes = [Adjustment(key, OmegaConf.select(cfg, key), new, reason) for key, new, reason in _needed(cfg, machine)]
    return [change for change in changes if change.old != change.new]


def _needed(cfg: DictConfig, machine: Machine) -> Iterator[tuple[str, Any, str]]:
    """Yield the keys that this machine decides, their values here, and the reasons."""
    trainer: Any = cfg.get("trainer") or {}
    accelerator = str(trainer.get("accelerator") or "auto")
    devices = trainer.get("devices", "auto")
    other = accelerator not in ("auto", "cpu", "gpu", "cuda", "mps")  # such as a TPU
    gpu = other or (accelerator in ("auto", "gpu", "cuda") and machine.cuda_devices > 0)
    if gpu:
        count = device_count(devices, machine.cuda_devices)
    else:
        count = int(devices) if accelerator in ("auto", "cpu") and _is_count(devices) else 1
        if accelerator != "cpu" and (accelerator != "auto" or machine.mps):  # `auto` means the CPU already
            yield "trainer.accelerator", "cpu", _NO_FLOAT64 if machine.mps and accelerator != "cuda" else _NO_GPU
        if devices not in (None, "auto"):
            yield "trainer.devices", count, "without a GPU, one process trains on all cores"
    processes = count * int(trainer.get("num_nodes") or 1)  # on all machines together

    strategy = trainer.get("strategy") or "auto"
    distributed = str(strategy).startswith("ddp")
    if (distributed or strategy == FSDP) and processes == 1:
        yield "trainer.strategy", "auto", "one process has nobody to share with"
    elif machine.windows and gpu and processes > 1 and (distributed or strategy == "auto"):
        yield "trainer.strategy", GLOO_DDP, "Windows has no NCCL"
    if trainer.get("sync_batchnorm") and (processes == 1 or not gpu):
        reason = "one process has all statistics" if processes == 1 else "PyTorch has it for GPUs only"
        yield "trainer.sync_batchnorm", False, reason

    precision = str(trainer.get("precision"))
    if gpu:
        if precision.startswith("bf16") and not other and not machine.gpu_bf16:
            yield "trainer.precision", "16-mixed", _NO_BF16
    elif precision.startswith(("16", "bf16")) and not machine.cpu_bf16:
        yield "trainer.precision", 32, _NO_BF16
    elif precision.startswith("16"):
        yield "trainer.precision", "bf16-mixed", "processors are slow with float16"

    for key in (f"{node}.pin_memory" for node in _DATASETS):
        if not gpu and OmegaConf.select(cfg, key):
            yield key, False, "it speeds up copies to a GPU only"


def fit_to_machine(cfg: DictConfig, machine: Machine) -> list[Adjustment]:
    """Make all adjustments in the configuration, and log each with its reason."""
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
    """Return one line for each change; keys that change alike for the same reason share it."""
    lines: dict[tuple[str, str], list[str]] = {}
    for change in adjustments:
        lines.setdefault((f"{_yaml(change.old)} -> {_yaml(change.new)}", change.reason), []).append(change.key)
    return [f"{', '.join(keys)}: {change} ({reason})" for (change, reason), keys in lines.items()]


def _is_count(devices: Any) -> bool:
    return str(devices).isdigit() and int(devices) > 0


def device_count(devices: Any, there: int) -> int:
    """Return how many GPUs Lightning would use: a count, -1 for all, or a list of indices (also `0,1`)."""
    if isinstance(devices, str) and "," in devices:
        return len([index for index in devices.split(",") if index.strip()])
    if devices in (None, "auto", -1, "-1"):
        return max(1, there)
    return int(devices) if _is_count(devices) else max(1, len(devices))


def _yaml(value: Any) -> str:
    """Return a value as a configuration writes it, so that users can copy it into a command."""
    return OmegaConf.to_yaml(OmegaConf.create({"v": value})).removeprefix("v: ").strip().replace("\n", " ")


def processor() -> str:
    """Return the CPU's model, as far as the system tells it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
