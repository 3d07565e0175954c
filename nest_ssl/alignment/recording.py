"""Read a recording that may come from anywhere: tensors and plain values come out of it, code never runs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nest_ssl.alignment.recorder import FORMAT
from nest_ssl.checkpoint.safe_load import reading
from nest_ssl.errors import CheckpointError

_LARGEST_PLAIN = 2**28  # bytes of a pickle of plain values


class RecordedStep:
    """One `step_N` folder; every file is read when it is asked for."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    @property
    def batch(self) -> dict[str, Any]:
        return self._table("batch.pt")

    @property
    def outputs(self) -> dict[str, Tensor]:
        return self._tensors("forward_output.pt")

    @property
    def loss(self) -> Tensor:
        loss = _load(self.folder / "loss.pt")
        if not isinstance(loss, Tensor):
            raise CheckpointError(f"{self.folder / 'loss.pt'}: expected one tensor, found {type(loss).__name__}")
        return loss

    @property
    def gradients(self) -> dict[str, Tensor]:
        return self._tensors("parameter_gradients.pt")

    @property
    def weights(self) -> dict[str, Tensor] | None:
        """After the optimiser's step; a replay takes none."""
        return self._tensors("parameter_weights.pt") if (self.folder / "parameter_weights.pt").exists() else None

    @property
    def layers(self) -> dict[str, list[dict[str, Any]]]:
        """Calls by layer, each with `order`, `type`, `inputs` and `outputs`."""
        path = self.folder / "layer_outputs.pkl"
        layers = self._table(path.name)
        for name, calls in layers.items():
            if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
                raise CheckpointError(f"{path}: layer {name!r} is not a list of calls with inputs and outputs")
        return layers

    @property
    def metadata(self) -> dict[str, Any]:
        return _load_plain(self.folder / "metadata.pkl")

    def _table(self, name: str) -> dict[str, Any]:
        table = _load(self.folder / name)
        if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
            raise CheckpointError(f"{self.folder / name}: expected a table of named values")
        return table

    def _tensors(self, name: str) -> dict[str, Tensor]:
        table = self._table(name)
        if not all(isinstance(value, Tensor) for value in table.values()):
            raise CheckpointError(f"{self.folder / name}: expected a table of named tensors")
        return table


class Recording:
    """A folder that the recorder wrote."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder}: no such folder; record into it first")
        version = self.metadata.get("format")
        if version != FORMAT:
            raise CheckpointError(f"{self.folder}: has format {version!r}, expected {FORMAT}; record it again")

    @cached_property
    def metadata(self) -> dict[str, Any]:
        return _load_plain(self.folder / "metadata.pkl")

    @cached_property
    def structure(self) -> dict[str, Any]:
        """`tensors`: shape, dtype and kind of each by name; `layers`: the class of each by name."""
        path = self.folder / "model_structure.pkl"
        structure = _load_plain(path)
        if not all(isinstance(structure.get(part), dict) for part in ("tensors", "layers")):
            raise CheckpointError(f"{path}: expected tables `tensors` and `layers`; record it again")
        return structure

    @property
    def initial_weights(self) -> dict[str, Tensor]:
        return RecordedStep(self.folder, -1)._tensors("initial_weights.pt")

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


class _PlainUnpickler(pickle.Unpickler):
    """Numbers, text and containers of them; a class or function of any kind is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise CheckpointError(f"refused: it holds {module}.{name}; only plain values are read")

    def persistent_load(self, pid: Any) -> Any:
        raise CheckpointError("refused: it refers to objects outside; only plain values are read")


def _load_plain(path: Path) -> dict[str, Any]:
    with reading(path, "part of a recording"):
        if path.stat().st_size > _LARGEST_PLAIN:
            raise CheckpointError(f"{path}: refused: {path.stat().st_size} bytes; at most {_LARGEST_PLAIN} are read")
        try:
            with path.open("rb") as file:
                value = _PlainUnpickler(file).load()
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}; record it again") from error
        if not isinstance(value, dict):
            raise CheckpointError(f"{path}: expected a table of values; record it again")
    return value


def _load(path: Path) -> Any:
    with reading(path, "part of a recording"):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, Mapping)
        and isinstance(call.get("order"), int)
        and isinstance(call.get("type"), str)
        and all(
            isinstance(call.get(part), Mapping)
            and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in call[part].items())
            for part in ("inputs", "outputs")
        )
    )
