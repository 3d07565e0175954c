"""Load tensors and plain values from a file that may come from anywhere, without running code from it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from nest_ssl.checkpoint.inspection import Refused, inspect_torch_file
from nest_ssl.errors import CheckpointError, one_line
from nest_ssl.regular_file import open_regular, why_not_regular


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn any error of reading `path` into a CheckpointError of one line; `kind` is the expected format."""
    wrong = why_not_regular(path)
    if wrong is not None:
        raise CheckpointError(f"{path}: {wrong}")
    try:
        yield
    except CheckpointError:
        raise
    except Refused as error:
        raise CheckpointError(f"{path}: refused: {one_line(error)}") from error
    except Exception as error:  # manipulated bytes can raise anything
        raise CheckpointError(f"{path}: damaged, or not {kind}: {one_line(error)}") from error


def load_tensors(source: Path | IO[bytes], more_names: Collection[str] = (), mmap: bool = False) -> Any:
    """Load a file of `torch.save` on the CPU, restricted to tensors and plain values; memory-mapped with `mmap`.

    The file is inspected first; then torch loads it under its own restriction to these types and `more_names`.
    """
    if isinstance(source, Path):
        with open_regular(source) as file:
            inspect_torch_file(file, more_names)
    else:
        inspect_torch_file(source, more_names)
        source.seek(0)
    return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)


def checked_state_dict(value: Any, path: Path) -> dict[str, Tensor]:
    """Return `value` if it maps names to tensors, as a model's weights do; else raise CheckpointError."""
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()):
        raise CheckpointError(f"{path}: its weights are not a table of named tensors")
    return dict(value)
