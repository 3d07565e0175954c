"""Describe a model and its machine in plain values."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn


def structure_of(model: nn.Module) -> dict[str, Any]:
    """Return the names, shapes and types of a model's tensors, and the classes of its layers."""
    parameters = dict(model.named_parameters())
    tensors = {
        name: {
            "shape": list(tensor.shape),
            "dtype": dtype_name(tensor),
            "kind": "buffer" if name not in parameters else _kind(parameters[name]),
        }
        for name, tensor in model.state_dict().items()
    }
    layers = {name: type(module).__name__ for name, module in model.named_modules(remove_duplicate=False) if name}
    return {"tensors": tensors, "layers": layers}


def dtype_name(tensor: Tensor) -> str:
    """Return the short name of a tensor's type, such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _kind(parameter: nn.Parameter) -> str:
    return "trainable" if parameter.requires_grad else "frozen"


def machine_versions() -> dict[str, str]:
    """Return everything but the code that decides the last bits of a result."""
    return {
        "torch": str(torch.__version__),
        "lightning": lightning.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
    }


def _processor() -> str:
    """Return the processor's name as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
