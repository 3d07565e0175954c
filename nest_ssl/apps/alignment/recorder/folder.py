"""Write the files of a recording, each completely or not at all."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .recording_options import RecordingError

FORMAT = 1
_LOCK = ".nest_ssl.lock"  # of nest_ssl/folder_lock.py, which NeMo's environment does not have


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
