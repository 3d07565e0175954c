"""Read a recording from any source: only tensors and plain values are loaded, and no code runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

from torch import Tensor

from nest_ssl.apps.alignment.recorder.files import FORMAT
from nest_ssl.checkpoint.inspection import LARGEST_PICKLE, load_plain
from nest_ssl.checkpoint.weights import load_tensors, reading
from nest_ssl.errors import CheckpointError, one_line
from nest_ssl.regular_file import open_regular

# The types of the metadata that are read.
_METADATA: dict[str, Any] = {"versions": dict, "config": (dict, NoneType), "history": list}
CURVES = ("loss", "grad_norm", "lr")


class RecordedStep:
    """One `step_N` folder; each property reads its file."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    @property
    def batch(self) -> dict[str, Any]:
        return _table(self.folder / "batch.pt")

    @property
    def outputs(self) -> dict[str, Tensor]:
        return _tensors(self.folder / "forward_output.pt")

    @property
    def loss(self) -> Tensor:
        path = self.folder / "loss.pt"
        loss = _load(path)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise CheckpointError(f"{path}: expected one number as a tensor")
        return loss

    @property
    def gradients(self) -> dict[str, Tensor]:
        return _tensors(self.folder / "parameter_gradients.pt")

    @property
    def weights(self) -> dict[str, Tensor] | None:
        """The weights after the optimizer's step; a replay has none."""
        path = self.folder / "parameter_weights.pt"
        return _tensors(path) if path.exists() else None

    @property
    def layers(self) -> dict[str, list[dict[str, Any]]]:
        """The calls of each layer, with `order`, `type`, `inputs` and `outputs`."""
        path = self.folder / "layer_outputs.pkl"
        layers = _table(path)
        for name, calls in layers.items():
            if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
                raise CheckpointError(f"{path}: layer {name!r} is not a list of calls with inputs and outputs")
        return layers

    @property
    def metadata(self) -> dict[str, Any]:
        return _load_plain(self.folder / "metadata.pkl")


class Recording:
    """A folder that the recorder wrote."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder}: no such folder; record into it first")
        version = self.metadata.get("format")
        if version != FORMAT:
            raise CheckpointError(
                f"{self.folder}: has format {one_line(repr(version))}, expected {FORMAT}; record it again"
            )

    @cached_property
    def metadata(self) -> dict[str, Any]:
        path = self.folder / "metadata.pkl"
        metadata = _load_plain(path)
        for name, kind in _METADATA.items():
            if name in metadata and not isinstance(metadata[name], kind):
                raise CheckpointError(f"{path}: {name} is a {type(metadata[name]).__name__}; record it again")
        for entry in metadata.get("history", []):
            if not isinstance(entry, dict) or not all(_is_number(entry.get(name)) for name in ("step", *CURVES)):
                raise CheckpointError(
                    f"{path}: history has an entry without step, {', '.join(CURVES)}; record it again"
                )
        return metadata

    @cached_property
    def structure(self) -> dict[str, Any]:
        """`tensors`: shape, dtype and kind of each by name; `layers`: the class of each by name."""
        path = self.folder / "model_structure.pkl"
        structure = _load_plain(path)
        if not all(isinstance(structure.get(part), dict) for part in ("tensors", "layers")):
            raise CheckpointError(f"{path}: expected tables `tensors` and `layers`; record it again")
        if not all(_is_tensor_kind(tensor) for tensor in structure["tensors"].values()):
            raise CheckpointError(f"{path}: expected the shape, dtype and kind of each tensor; record it again")
        return structure

    @property
    def initial_weights(self) -> dict[str, Tensor]:
        return _tensors(self.folder / "initial_weights.pt")

    @property
    def steps(self) -> list[int]:
        """The recorded steps, in order."""
        numbers = (path.name.removeprefix("step_") for path in self.folder.glob("step_*") if path.is_dir())
        return sorted(int(number) for number in numbers if number.isdecimal())

    def step(self, number: int) -> RecordedStep:
        if number not in self.steps:
            found = ", ".join(map(str, self.steps)) or "none"
            raise CheckpointError(f"{self.folder}: step {number} is not in this recording; it has {found}")
        return RecordedStep(self.folder / f"step_{number}", number)


def _load_plain(path: Path) -> dict[str, Any]:
    with reading(path, "part of a recording"), open_regular(path) as file:
        value = load_plain(file.read(LARGEST_PICKLE + 1))
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a table of values; record it again")
    return value


def _load(path: Path) -> Any:
    with reading(path, "part of a recording"):
        return load_tensors(path, mmap=True)


def _table(path: Path) -> dict[str, Any]:
    table = _load(path)
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise CheckpointError(f"{path}: expected a table of named values")
    return table


def _tensors(path: Path) -> dict[str, Tensor]:
    tensors = _load(path)
    if not isinstance(tensors, dict) or not _is_table_of_tensors(tensors):
        raise CheckpointError(f"{path}: expected a table of named tensors")
    return tensors


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _is_tensor_kind(tensor: Any) -> bool:
    """Return whether this describes a tensor as `structure_of` does."""
    if not isinstance(tensor, dict) or not all(isinstance(tensor.get(name), str) for name in ("dtype", "kind")):
        return False
    shape = tensor.get("shape")
    return isinstance(shape, list) and all(isinstance(size, int) and _is_number(size) for size in shape)


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, Mapping)
        and isinstance(call.get("order"), int)
        and isinstance(call.get("type"), str)
        and all(map(_is_table_of_tensors, (call.get("inputs"), call.get("outputs"), call.get("changed", {}))))
    )


def _is_table_of_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
