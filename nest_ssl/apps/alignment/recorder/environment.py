"""What a model and its machine are made of, in plain values."""

from __future__ import annotations

import platform
from typing import Any

import lightning
import torch
from torch import Tensor, nn


def structure_of(model: nn.Module) -> dict[str, Any]:
    """The names, shapes and types of a model's tensors, and the classes of its layers."""
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
    """`float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _kind(parameter: nn.Parameter) -> str:
    return "trainable" if parameter.requires_grad else "frozen"


def machine_versions() -> dict[str, str]:
    """What decides the last bits besides the code."""
    return {
        "torch": str(torch.__version__),
        "lightning": lightning.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }
