"""Describe tensors, models and the machine in plain values."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any, TypedDict

import lightning
import torch
from torch import Tensor, nn

KEEP_WHOLE = 1 << 16  # elements
SAMPLE = 1 << 12


class TensorDigest(TypedDict):
    """The digest of a large tensor, which `torch.load(..., weights_only=True)` reads."""

    sha256: str
    shape: tuple[int, ...]
    dtype: str
    sample: Tensor  # shows how large a difference is


def keep(tensor: Tensor) -> Tensor | TensorDigest:
    """Return a copy of a small tensor; of a large one a digest and a sample, which show whether another is equal."""
    tensor = tensor.detach()
    if tensor.numel() <= KEEP_WHOLE:
        return tensor.clone()
    flat = tensor.contiguous().flatten()
    flat = flat + 0  # -0.0 and 0.0 are equal, their bytes are not
    return {
        "sha256": hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest(),
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype),
        "sample": flat[:: max(1, flat.numel() // SAMPLE)].clone(),
    }


def structure_of(model: nn.Module) -> dict[str, Any]:
    """Return the names, shapes and types of a model's tensors, and the classes of its layers."""
    parameters = dict(model.named_parameters())
    tensors = {}
    for name, tensor in model.state_dict().items():
        kind = "buffer"
        if name in parameters:
            kind = "trainable" if parameters[name].requires_grad else "frozen"
        tensors[name] = {"shape": list(tensor.shape), "dtype": dtype_name(tensor), "kind": kind}
    layers = {name: type(module).__name__ for name, module in model.named_modules(remove_duplicate=False) if name}
    return {"tensors": tensors, "layers": layers}


def dtype_name(tensor: Tensor) -> str:
    """Return the short name of a tensor's type, such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


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
