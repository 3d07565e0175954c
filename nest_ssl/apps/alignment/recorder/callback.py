"""Watches a run, and writes down the steps that were asked for."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from .environment import machine_versions, structure_of
from .folder import FORMAT, RecordedTensors, empty_recording, write_plain, write_step
from .listener import GIGABYTE, LayerListener
from .recording_options import RecorderOptions, RecordingError, require_exact

FORWARD_OUTPUTS = ("log_probs", "encoded_len", "masks", "tokens")
_log = logging.getLogger("nest_ssl.recorder")


class Recorder(pl.Callback):
    """Records the chosen optimiser steps of a run, and the loss and gradient norm of all; only rank 0 writes.

    With gradient accumulation a step's batch, outputs and layers are those of its last batch; its gradients are the
    accumulated ones, before clipping.
    """

    def __init__(self, options: RecorderOptions, side: str, versions: Mapping[str, str], config: Any) -> None:
        require_exact(config)
        self.options = options
        self._metadata: dict[str, Any] = {
            "format": FORMAT,
            "side": side,
            "versions": {**versions, **machine_versions()},
            "config": config,
            "layers": list(options.save_layers),
            "half": options.save_half,
            "history": [],
        }
        self._history: list[dict[str, Any]] = self._metadata["history"]
        self._listener: LayerListener | None = None
        self._step: dict[str, Any] = {}
        self._outputs: dict[str, Tensor] = {}

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
        _log.info("%s", self._cost(pl_module, folder))
        write_plain(structure_of(pl_module), folder / "model_structure.pkl")
        torch.save(dict(pl_module.state_dict()), folder / "initial_weights.pt")
        self._write_metadata()
        self._listen_to_outputs(pl_module)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, index: int) -> None:
        if not trainer.is_global_zero:
            return
        if self._listener is not None:  # of an earlier batch that is accumulated into this step
            self._listener.detach()
        self._step, self._listener = {"step": trainer.global_step}, None
        if trainer.global_step in self.options.save_steps:
            options = self.options
            self._step["batch"] = {name: _copied(value) for name, value in _fields(batch).items()}
            self._step["started"] = time.monotonic()
            self._listener = LayerListener(pl_module, options.save_layers, options.save_half, options.save_max_gb)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        if not trainer.is_global_zero:
            return
        gradients = {name: p.grad for name, p in pl_module.named_parameters() if p.grad is not None}
        self._step["grad_norm"] = total_norm(gradients.values())
        self._step["lr"] = float(optimizer.param_groups[0]["lr"])
        if self._listener is not None:
            self._step["gradients"] = {name: _copied(gradient) for name, gradient in gradients.items()}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        if not trainer.is_global_zero or "grad_norm" not in self._step:  # more batches are accumulated
            return
        loss = (outputs["loss"] if isinstance(outputs, Mapping) else outputs).detach()
        summary = {name: self._step[name] for name in ("step", "lr", "grad_norm")}
        self._history.append({**summary, "loss": float(loss)})
        if self._listener is not None:
            self._listener.detach()
            self._save(pl_module, loss.to("cpu"), self._listener)
        self._step, self._listener, self._outputs = {}, None, {}

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._write_metadata()
        recorded = [entry["step"] for entry in self._history if entry["step"] in self.options.save_steps]
        missed = [step for step in self.options.save_steps if step not in recorded]
        if missed:
            _log.warning("save_steps: step %d was never taken; the run ended after %d", missed[0], trainer.global_step)

    def _listen_to_outputs(self, model: pl.LightningModule) -> None:
        """Keep what the model's forward returns; it is called directly, so no hook would see it."""
        forward: Callable[..., Any] = model.forward

        def listening(*args: Any, **kwargs: Any) -> Any:
            outputs = forward(*args, **kwargs)
            if self._listener is not None:
                self._outputs = dict(zip(FORWARD_OUTPUTS, (_copied(value) for value in outputs), strict=False))
            return outputs

        model.forward = listening  # type: ignore[method-assign]

    def _save(self, model: nn.Module, loss: Tensor, listener: LayerListener) -> None:
        step = self._step
        recorded = RecordedTensors(
            step["batch"], self._outputs, loss, step["gradients"], dict(model.state_dict()), listener.by_layer()
        )
        summary = {**self._history[-1], "layer_calls_left_out": listener.left_out}
        size = write_step(self.options.output_dir, summary, recorded)
        self._write_metadata()
        seconds = time.monotonic() - step["started"]
        _log.info("recorded step %d: %s, %.1f s", step["step"], _readable(size), seconds)
        if listener.left_out:
            _log.warning(
                "step %d: %d calls of layers were left out, beyond save_max_gb=%g; choose layers with save_layers, "
                "or save_half=true",
                *(step["step"], listener.left_out, self.options.save_max_gb),
            )

    def _write_metadata(self) -> None:
        write_plain(self._metadata, self.options.output_dir / "metadata.pkl")

    def _cost(self, model: nn.Module, folder: Path) -> str:
        """What recording will take, before it takes it; refuses what the disk cannot hold."""
        weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        count = len(self.options.save_steps)
        surely, free = weights + count * (weights + gradients), shutil.disk_usage(folder).free
        layers = f"up to {self.options.save_max_gb:g} GB each of layers (save_max_gb)"
        if not self.options.save_layers:
            layers = "no layers"
        steps = f"{count} step{'s' if count > 1 else ''} into {folder}"
        text = f"recording {steps}: {_readable(surely)} of weights and gradients, and {layers}"
        if surely > free:
            raise RecordingError(f"{text}; the disk has {_readable(free)} free: record fewer steps")
        return f"{text}; the disk has {_readable(free)} free"


def total_norm(gradients: Iterable[Tensor]) -> float:
    """The norm of all gradients together."""
    norms = [gradient.detach().norm().double() for gradient in gradients]
    return float(torch.stack(norms).norm()) if norms else 0.0


def show_messages() -> None:
    """Print the recorder's lines where the run's own logging would not."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False


def _readable(size: float) -> str:
    return f"{size / GIGABYTE:.2f} GB" if size >= GIGABYTE else f"{size / 1e6:.0f} MB"


def _fields(batch: Any) -> dict[str, Any]:
    """A batch's tensors and names, whichever class it is of."""
    values = vars(batch) if hasattr(batch, "__dict__") else {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Tensor) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    }


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
