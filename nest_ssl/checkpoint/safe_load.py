"""Tensors and plain values from a file that may come from anywhere: nothing that it brings along is ever run."""

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
    """Turn whatever goes wrong while reading `path` into one line; `kind` says what it should have been."""
    wrong = why_not_regular(path)
    if wrong is not None:
        raise CheckpointError(f"{path}: {wrong}")
    try:
        yield
    except CheckpointError:
        raise
    except Refused as error:
        raise CheckpointError(f"{path}: refused: {one_line(error)}") from error
    except Exception as error:  # bytes that are damaged on purpose can raise anything
        raise CheckpointError(f"{path}: damaged, or not {kind}: {one_line(error)}") from error


def load_tensors(source: Path | IO[bytes], more_names: Collection[str] = (), mmap: bool = False) -> Any:
    """What `torch.save` wrote, on the CPU, restricted to tensors and plain values; in place with `mmap`.

    The file is looked over first; then torch, which knows nothing but these and `more_names` either, loads it.
    """
    if isinstance(source, Path):
        with open_regular(source) as file:
            inspect_torch_file(file, more_names)
    else:
        inspect_torch_file(source, more_names)
        source.seek(0)
    return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)


def checked_state_dict(value: Any, path: Path) -> dict[str, Tensor]:
    """`value` if it maps names to tensors, as a model's weights do."""
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items()):
        raise CheckpointError(f"{path}: its weights are not a table of named tensors")
    return dict(value)
