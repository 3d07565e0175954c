"""Write down what a training step does, layer by layer: the one recorder that NeMo and nest_ssl are watched with.

It runs in NeMo's environment too, so it imports nothing of nest_ssl. A recording is a folder:

    model_structure.pkl  metadata.pkl  initial_weights.pt
    step_N/  batch.pt  forward_output.pt  loss.pt  parameter_gradients.pt  parameter_weights.pt  layer_outputs.pkl
             metadata.pkl

`metadata.pkl` and `model_structure.pkl` are pickles of plain values; all others are what `torch.save` writes, and
`torch.load(..., weights_only=True)` reads.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import platform
import re
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import lightning
import lightning.pytorch as pl
import torch
from torch import Tensor, nn

_log = logging.getLogger("nest_ssl.recorder")

FORMAT = 1
FORWARD_OUTPUTS = ("log_probs", "encoded_len", "masks", "tokens")
_GIGABYTE = 1e9
_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)\s*(?::\s*(\d+))?")


class RecordingError(Exception):
    """What was asked for cannot be recorded; the message says why."""


@dataclasses.dataclass(frozen=True)
class RecorderOptions:
    """What to keep, and where; the names of the fields are the keys on the command line."""

    output_dir: Path
    save_steps: tuple[int, ...] = (0,)
    save_layers: tuple[str, ...] = ("*",)  # patterns of layer names; none keeps no layer
    save_half: bool = False  # layers in half precision, in half the space
    save_max_gb: float = 8.0  # of layers in one step, in memory and then on disk

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RecorderOptions:
        """The options among the keys of a run's configuration."""
        given = {field.name: config[field.name] for field in dataclasses.fields(cls) if field.name in config}
        folder = given.get("output_dir")
        if not isinstance(folder, str) or not folder:
            raise RecordingError("output_dir: missing; give the folder to record into: output_dir=./saved_outputs")
        half, limit = given.get("save_half", False), given.get("save_max_gb", 8.0)
        if not isinstance(half, bool):
            raise RecordingError(f"save_half: is {half!r}; expected true or false")
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise RecordingError(f"save_max_gb: is {limit!r}; expected gigabytes > 0")
        patterns = given.get("save_layers", "*")
        if isinstance(patterns, str):
            patterns = patterns.split(",")
        return cls(
            output_dir=Path(folder).expanduser().absolute(),
            save_steps=parse_steps(given.get("save_steps", 0)),
            save_layers=tuple(str(pattern).strip() for pattern in patterns or ()),
            save_half=half,
            save_max_gb=float(limit),
        )


def require_exact(model: Mapping[str, Any]) -> None:
    """Refuse a model configuration whose layers would not be called."""
    if model.get("numerics") == "fast":
        raise RecordingError("model.numerics: fast does not call the layers to record; use model.numerics=exact")


def parse_steps(value: Any, key: str = "save_steps") -> tuple[int, ...]:
    """Steps as people write them: `0`, `"0,5,10"`, `0-9`, `0-100:10` (every tenth), `[0, 5-7]`; `key` is for errors."""
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


@dataclasses.dataclass
class _Call:
    """A layer that is running."""

    name: str
    inputs: dict[str, Tensor] | None  # None: not to be kept
    versions: dict[str, int]  # of the inputs: an operation in place counts it up
    places_used: set[str] = dataclasses.field(default_factory=set)  # of layers with several names, called from here


class LayerListener:
    """Copies what goes into every layer and what comes out, while it is attached.

    Only forward hooks, which change nothing: inputs are copied before a layer can overwrite them in place. A layer
    that a model uses in several places goes by the name of the place. `calls` is in the order in which layers finish,
    which is the order of data. Inputs that a layer did overwrite are kept once more, as `changed`: NeMo adds dither
    to the batch itself.
    """

    def __init__(self, model: nn.Module, patterns: Iterable[str] = ("*",), half: bool = False, limit: float = 8.0):
        self.calls: list[dict[str, Any]] = []
        self.left_out = 0  # calls that found no more room
        self.bytes = 0
        self._patterns, self._half, self._limit = tuple(patterns), half, limit * _GIGABYTE
        self._running: list[_Call] = []
        self._copies: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}
        places: dict[nn.Module, list[str]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            if name:
                places.setdefault(module, []).append(name)
        self._hooks = [hook for module, names in places.items() for hook in self._attach(module, names)]

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def by_layer(self) -> dict[str, list[dict[str, Any]]]:
        """The calls of each layer."""
        layers: dict[str, list[dict[str, Any]]] = {}
        for order, call in enumerate(self.calls):
            layers.setdefault(call["name"], []).append({"order": order, **call})
        return layers

    def _attach(self, module: nn.Module, names: list[str]) -> list[Any]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            name = self._place(names)
            wanted = any(fnmatch(name, pattern) for pattern in self._patterns)
            given = _tensors({**dict(enumerate(args)), **kwargs}) if wanted else []
            versions = {key: tensor._version for key, tensor in given}
            self._running.append(_Call(name, self._keep(given) if wanted else None, versions))

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = self._running.pop()
            if call.inputs is None:
                return
            outputs = self._keep(_tensors(output))
            given = _tensors({**dict(enumerate(args)), **kwargs})
            changed = self._keep([(key, t) for key, t in given if t._version != call.versions.get(key)])
            if self.bytes > self._limit:
                self.left_out += 1
                return
            self.calls.append(
                {
                    "name": call.name,
                    "type": type(module).__name__,
                    "inputs": call.inputs,
                    "outputs": outputs,
                    **({"changed": changed} if changed else {}),
                }
            )

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True),
        ]

    def _place(self, names: list[str]) -> str:
        """Which of its names a layer has in this call: the next one below the innermost layer that is running."""
        if len(names) == 1:
            return names[0]
        for parent in reversed(self._running):
            below = [name for name in names if name.startswith(f"{parent.name}.")]
            if below:
                unused = [name for name in below if name not in parent.places_used]
                chosen = (unused or below)[0]
                parent.places_used.add(chosen)
                return chosen
        return names[0]

    def _keep(self, tensors: list[tuple[str, Tensor]]) -> dict[str, Tensor]:
        return {} if self.bytes > self._limit else {name: self._copy(tensor) for name, tensor in tensors}

    def _copy(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU; a layer's output and the next one's input share it while nothing has written to them."""
        known = self._copies.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return known[2]
        copy = tensor.detach().to("cpu", copy=True)
        if self._half and copy.dtype in (torch.float32, torch.float64):
            copy = copy.half()
        self.bytes += copy.numel() * copy.element_size()
        self._copies[id(tensor)] = (weakref.ref(tensor), tensor._version, copy)
        return copy


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


def total_norm(gradients: Iterable[Tensor]) -> float:
    """The norm of all gradients together."""
    norms = [gradient.detach().norm().double() for gradient in gradients]
    return float(torch.stack(norms).norm()) if norms else 0.0


def _readable(size: float) -> str:
    return f"{size / _GIGABYTE:.2f} GB" if size >= _GIGABYTE else f"{size / 1e6:.0f} MB"


def _kind(parameter: nn.Parameter) -> str:
    return "trainable" if parameter.requires_grad else "frozen"


def _tensors(value: Any, name: str = "") -> list[tuple[str, Tensor]]:
    """Every tensor in arguments or results, by position or keyword."""
    if isinstance(value, Tensor):
        return [(name or "0", value)]
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    return [found for key, item in items for found in _tensors(item, f"{name}.{key}" if name else str(key))]


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


@dataclasses.dataclass(frozen=True)
class RecordedTensors:
    """What one step leaves behind, on the CPU."""

    batch: dict[str, Any]
    outputs: dict[str, Tensor]
    loss: Tensor
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor] | None  # after the optimiser's step
    layers: dict[str, list[dict[str, Any]]]


def write_step(folder: Path, summary: Mapping[str, Any], tensors: RecordedTensors) -> int:
    """Write `step_N`, beside its place, and move it there when it is whole; its size in bytes."""
    final = folder / f"step_{summary['step']}"
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    torch.save(tensors.batch, partial / "batch.pt")
    torch.save(tensors.outputs, partial / "forward_output.pt")
    torch.save(tensors.loss, partial / "loss.pt")
    torch.save(tensors.gradients, partial / "parameter_gradients.pt")
    if tensors.weights is not None:
        torch.save(tensors.weights, partial / "parameter_weights.pt")
    torch.save(tensors.layers, partial / "layer_outputs.pkl")
    size = sum(file.stat().st_size for file in partial.iterdir())
    write_plain({**summary, "bytes": size}, partial / "metadata.pkl")
    partial.rename(final)
    return size


def write_plain(value: Any, path: Path) -> None:
    """A pickle of plain values, whole or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_bytes(pickle.dumps(value, protocol=4))
    temporary.replace(path)


def empty_recording(folder: Path) -> None:
    """A folder without an earlier recording; a folder of anything else is not touched."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / "metadata.pkl").is_file():
        raise RecordingError(f"output_dir: {folder} holds other files; give a new folder")
    for old in (*folder.glob("step_*"), *folder.glob(".step_*.partial")):
        shutil.rmtree(old)


def machine_versions() -> dict[str, str]:
    """What decides the last bits besides the code."""
    return {
        "torch": str(torch.__version__),
        "lightning": lightning.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }


def show_messages() -> None:
    """Print the recorder's lines where the run's own logging would not."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
