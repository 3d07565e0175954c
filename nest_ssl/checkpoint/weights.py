"""Weights in files that may come from anywhere: loaded without running code, and compared with the model's.

Torch would drop the imaginary part of complex numbers and load integers as weights; with a single NaN, a model computes
nothing but NaN.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from omegaconf import DictConfig
from torch import Tensor

from nest_ssl.checkpoint.inspection import Refused, inspect_torch_file
from nest_ssl.errors import CheckpointError, one_line
from nest_ssl.regular_file import open_regular, why_not_regular

# These are converted to the model's type; others, such as float8 or quantised integers, are refused.
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class SavedModel:
    """A configuration (the `model` node; empty if the file has weights only) and the weights."""

    config: DictConfig
    state_dict: dict[str, Tensor]


class SavableModel(Protocol):
    """A model that has the configuration it was built from."""

    cfg: DictConfig

    def state_dict(self) -> dict[str, Any]: ...


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


def refuse_unusable_weights(weights: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path | str) -> None:
    """Refuse the first tensor that differs from the model's in shape or kind, or has numbers that are not finite.

    Integers, such as the number of batches that a batch norm has seen, must be integers in both.
    """
    refuse_other_kinds(weights, own, path)
    for name, tensor in weights.items():
        if name in own and own[name].is_floating_point() and not _finite(tensor, own[name].dtype):
            raise CheckpointError(
                f"{path}: {one_line(name)} holds NaN or infinite numbers; use a checkpoint from before it went wrong"
            )


def refuse_other_kinds(weights: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path | str) -> None:
    """Refuse the first tensor that differs from the model's in shape or kind; a replay may need non-finite numbers."""
    for name, tensor in weights.items():
        if name not in own:
            continue
        if tensor.shape != own[name].shape:
            raise CheckpointError(
                f"{path}: {one_line(name)} has shape {tuple(tensor.shape)}, in the model {tuple(own[name].shape)}; "
                "use the model's own sizes or exclude it"
            )
        if not _fits(tensor.dtype, own[name].dtype) or tensor.layout != torch.strided:
            kind = str(tensor.dtype if tensor.layout == torch.strided else tensor.layout).removeprefix("torch.")
            wanted = str(own[name].dtype).removeprefix("torch.")
            raise CheckpointError(f"{path}: {one_line(name)} is {kind}, in the model {wanted}; it is not converted")


def refuse_nonfinite_optimizer(states: Any, path: Path | str) -> None:
    """Refuse the first tensor of an optimizer's state that would make the weights NaN in the next step."""
    for name, tensor in _tensors(states, "optimizer_states"):
        if tensor.is_complex() or (tensor.is_floating_point() and not _finite(tensor, tensor.dtype)):
            raise CheckpointError(
                f"{path}: {one_line(name)} holds NaN, infinite or complex numbers; use a checkpoint from before it "
                "went wrong"
            )


def _fits(stored: torch.dtype, own: torch.dtype) -> bool:
    if own.is_floating_point:
        return stored in _FLOATS
    whole = not (stored.is_floating_point or stored.is_complex) and stored != torch.bool
    return stored == own or (own != torch.bool and whole)


def _finite(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Return whether all numbers are finite, also after conversion to `dtype`: 1e300 is infinite in float32."""
    return bool(tensor.to(dtype).isfinite().all())


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from _tensors(item, f"{name}.{key}")
