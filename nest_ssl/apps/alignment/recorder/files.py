"""Write the files of a recording, each completely or not at all, and describe the model and the machine in them."""

from __future__ import annotations

import pickle
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn

FORMAT = 1
_LOCK = ".nest_ssl.lock"  # of nest_ssl/folder_lock.py, which NeMo's environment does not have


class RecordingError(Exception):
    """A recording is impossible; the message says why."""


def write_step(folder: Path, summary: Mapping[str, Any], tensors: Mapping[str, Any]) -> int:
    """Write `step_N`, with the tensors of each file by its name, completely or not at all; return its size in bytes."""
    final = folder / f"step_{summary['step']}"
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, content in tensors.items():
        torch.save(content, partial / name)
    size = sum(file.stat().st_size for file in partial.iterdir())
    write_plain({**summary, "bytes": size}, partial / "metadata.pkl")
    partial.rename(final)
    return size


def write_plain(value: Any, path: Path) -> None:
    """Write a pickle of plain values, completely or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_bytes(pickle.dumps(value, protocol=4))
    temporary.replace(path)


def empty_recording(folder: Path) -> None:
    """Remove an earlier recording from a folder; refuse a folder with other files."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(path.name != _LOCK for path in folder.iterdir()) and not (folder / "metadata.pkl").is_file():
        raise RecordingError(f"output_dir: {folder} holds other files; give a new folder")
    for old in folder.iterdir():
        if re.fullmatch(r"step_\d+|\.step_\d+\.partial", old.name) and old.is_dir():
            shutil.rmtree(old)


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
