"""Record the chosen steps of a training run in a folder."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from .files import FORMAT, RecordingError, empty_recording, machine_versions, structure_of, write_plain, write_step
from .listeners import GIGABYTE, BatchListener, LayerListener, TrainedBatch

_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)\s*(?::\s*(\d+))?")  # 0-9 or 0-100:10
_log = logging.getLogger("nest_ssl.recorder")


@dataclasses.dataclass(frozen=True)
class RecorderOptions:
    """The options of a recording; the names of the fields are the keys on the command line."""

    output_dir: Path
    save_steps: tuple[int, ...] = (0,)
    save_layers: tuple[str, ...] = ("*",)  # patterns of layer names; none keeps no layer
    save_max_gb: float = 8.0  # of layers in one step, in memory and then on disk

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RecorderOptions:
        """Read the options from the keys of a run's configuration."""
        given = {field.name: config[field.name] for field in dataclasses.fields(cls) if field.name in config}
        folder = given.get("output_dir")
        if not isinstance(folder, str) or not folder:
            raise RecordingError("output_dir: missing; give the folder to record into: output_dir=./saved_outputs")
        limit = given.get("save_max_gb", 8.0)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise RecordingError(f"save_max_gb: is {limit!r}; expected gigabytes > 0")
        patterns = given.get("save_layers", "*")
        if isinstance(patterns, str):
            patterns = patterns.split(",")
        return cls(
            output_dir=Path(folder).expanduser().absolute(),
            save_steps=parse_steps(given.get("save_steps", 0)),
            save_layers=tuple(str(pattern).strip() for pattern in patterns or ()),
            save_max_gb=float(limit),
        )


class Recorder(BatchListener):
    """Records the chosen optimizer steps of a run, and the loss and gradient norm of all; only rank 0 writes.

    With gradient accumulation a step's batch, outputs and layers are those of its last batch; its gradients are the
    accumulated ones, before clipping.
    """

    def __init__(self, options: RecorderOptions, side: str, version: str, config: Any) -> None:
        super().__init__()
        require_exact(config)
        self.options = options
        self._metadata: dict[str, Any] = {
            "format": FORMAT,
            "side": side,
            "versions": {side: version, **machine_versions()},
            "config": config,
            "layers": list(options.save_layers),
            "history": [],
        }
        self._layers: LayerListener | None = None
        self._started = 0.0

    def wants(self, step: int) -> bool:
        return step in self.options.save_steps

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._metadata.update(
            precision=str(trainer.precision),
            device=str(pl_module.device),
            accumulate_grad_batches=trainer.accumulate_grad_batches,
            seed=os.environ.get("PL_GLOBAL_SEED"),
        )
        folder = self.options.output_dir
        empty_recording(folder)
        _log.info("%s", self._cost(pl_module))
        write_plain(structure_of(pl_module), folder / "model_structure.pkl")
        torch.save(dict(pl_module.state_dict()), folder / "initial_weights.pt")
        self._write_metadata()
        super().on_fit_start(trainer, pl_module)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, index: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, index)
        if self._layers is not None:  # of an earlier batch that is accumulated into this step
            self._layers.detach()
            self._layers = None
        if trainer.is_global_zero and self.wants(trainer.global_step):
            self._started = time.monotonic()
            self._layers = LayerListener(pl_module, self.options.save_layers, self.options.save_max_gb)

    def on_batch_recorded(self, model: nn.Module, batch: TrainedBatch) -> None:
        if batch.grad_norm is None:  # more batches are accumulated
            return
        assert batch.loss is not None
        summary = {"step": batch.step, "lr": batch.lr, "grad_norm": batch.grad_norm, "loss": float(batch.loss)}
        self._metadata["history"].append(summary)
        if self._layers is not None:
            self._layers.detach()
            self._save(model, batch, summary, self._layers)
            self._layers = None

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._write_metadata()
        missed = set(self.options.save_steps).difference(entry["step"] for entry in self._metadata["history"])
        if missed:
            text = "save_steps: step %d was never taken; the run ended after %d"
            _log.warning(text, min(missed), trainer.global_step)

    def _save(self, model: nn.Module, batch: TrainedBatch, summary: Mapping[str, Any], layers: LayerListener) -> None:
        assert batch.loss is not None
        tensors = {
            "batch.pt": batch.fields,
            "forward_output.pt": batch.outputs,
            "loss.pt": batch.loss.to("cpu"),
            "parameter_gradients.pt": batch.gradients,
            "parameter_weights.pt": dict(model.state_dict()),  # after the optimizer's step
            "layer_outputs.pkl": layers.by_layer(),
        }
        size = write_step(self.options.output_dir, {**summary, "layer_calls_left_out": layers.left_out}, tensors)
        self._write_metadata()
        _log.info("recorded step %d: %s, %.1f s", batch.step, _readable(size), time.monotonic() - self._started)
        if layers.left_out:
            _log.warning(
                "step %d: %d calls of layers were left out, beyond save_max_gb=%g; choose layers with save_layers",
                *(batch.step, layers.left_out, self.options.save_max_gb),
            )

    def _write_metadata(self) -> None:
        write_plain(self._metadata, self.options.output_dir / "metadata.pkl")

    def _cost(self, model: nn.Module) -> str:
        """Return what the recording will need on disk; refuse it if the disk has not that much."""
        weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        count, folder = len(self.options.save_steps), self.options.output_dir
        least, free = weights + count * (weights + gradients), shutil.disk_usage(folder).free
        layers = f"up to {self.options.save_max_gb:g} GB each of layers (save_max_gb)"
        text = (
            f"recording {count} step{'s' if count > 1 else ''} into {folder}: {_readable(least)} of weights and "
            f"gradients, and {layers if self.options.save_layers else 'no layers'}; the disk has {_readable(free)} free"
        )
        if least > free:
            raise RecordingError(f"{text}: record fewer steps")
        return text


def require_exact(model: Mapping[str, Any]) -> None:
    """Refuse a model configuration with which layers are not called."""
    if model.get("numerics") == "fast":
        raise RecordingError("model.numerics: fast does not call the layers to record; use model.numerics=exact")


def parse_steps(value: Any, key: str = "save_steps") -> tuple[int, ...]:
    """Read steps: `0`, `"0,5,10"`, `0-9`, `0-100:10` (every tenth), `[0, 5-7]`; `key` is for errors."""
    parts = value if isinstance(value, Iterable) and not isinstance(value, str) else str(value).strip("[]()").split(",")
    steps: set[int] = set()
    for part in (str(part).strip() for part in parts):
        between = _RANGE.fullmatch(part)
        if part.isdecimal():
            steps.add(int(part))
        elif between and int(between[1]) <= int(between[2]) and between[3] != "0":
            steps.update(range(int(between[1]), int(between[2]) + 1, int(between[3] or 1)))
        else:
            raise RecordingError(f"{key}: is {value!r}; expected steps such as 0 or 0,5 or 0-9 or 0-100:10")
    return tuple(sorted(steps))


def show_messages() -> None:
    """Print the recorder's messages where the run's own logging does not."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False


def _readable(size: float) -> str:
    return f"{size / GIGABYTE:.2f} GB" if size >= GIGABYTE else f"{size / 1e6:.0f} MB"
