"""Copy what each batch of a training run and each layer of its model do, by hooks that change nothing."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

GIGABYTE = 1e9
FORWARD_OUTPUTS = ("log_probs", "encoded_len", "masks", "tokens")


@dataclasses.dataclass
class TrainedBatch:
    """The values of one batch; of accumulated batches, only the last has those of the optimizer step."""

    step: int  # optimizer steps taken before this batch
    wanted: bool  # whether its tensors are kept
    fields: dict[str, Any]
    outputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss: Tensor | None = None
    lr: float | None = None
    grad_norm: float | None = None  # of the accumulated gradients, before clipping
    gradients: dict[str, Any] = dataclasses.field(default_factory=dict)


class BatchListener(pl.Callback):
    """Calls `on_batch_recorded` after every batch with what it did; listens on rank 0 only.

    A subclass chooses the batches whose tensors are kept (`wants`) and what is kept of a tensor (`keep`).
    """

    def __init__(self) -> None:
        self._batch: TrainedBatch | None = None  # the one in training

    def wants(self, step: int) -> bool:
        """Return whether to keep the tensors of this step's batches."""
        return True

    def keep(self, name: str, tensor: Tensor) -> Any:
        """Return what is kept of a tensor."""
        return tensor.detach().to("cpu", copy=True)

    def on_batch_recorded(self, model: nn.Module, batch: TrainedBatch) -> None:
        raise NotImplementedError

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            listen_to_forward(pl_module, self._heard)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, index: int) -> None:
        if not trainer.is_global_zero:
            return
        wanted = self.wants(trainer.global_step)
        fields = self._kept(_fields(batch)) if wanted else {}
        self._batch = TrainedBatch(trainer.global_step, wanted, fields)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        if self._batch is None:
            return
        gradients = gradients_of(pl_module)
        self._batch.grad_norm = total_norm(gradients.values())
        self._batch.lr = float(optimizer.param_groups[0]["lr"])
        if self._batch.wanted:
            self._batch.gradients = self._kept(gradients)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        if self._batch is None:
            return
        self._batch.loss = outputs["loss"].detach()
        trained, self._batch = self._batch, None
        self.on_batch_recorded(pl_module, trained)

    def _heard(self, outputs: dict[str, Tensor]) -> None:
        if self._batch is not None and self._batch.wanted:  # not in validation
            self._batch.outputs = self._kept(outputs)

    def _kept(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.keep(name, value) if isinstance(value, Tensor) else value for name, value in values.items()}


def listen_to_forward(model: nn.Module, heard: Callable[[dict[str, Tensor]], None]) -> None:
    """Call `heard` with what every forward pass returns. No hook would see it: training calls `forward` directly."""
    forward: Callable[..., Any] = model.forward

    def listening(*args: Any, **kwargs: Any) -> Any:
        outputs = forward(*args, **kwargs)
        heard(dict(zip(FORWARD_OUTPUTS, (output.detach() for output in outputs), strict=False)))
        return outputs

    vars(model)["forward"] = listening


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}


def total_norm(gradients: Iterable[Tensor]) -> float:
    """Return the norm of all gradients together, summed in double precision."""
    return sum(float((gradient.double() ** 2).sum()) for gradient in gradients) ** 0.5


def _fields(batch: Any) -> dict[str, Any]:
    """Return a batch's tensors and lists of names, whatever its class."""
    return {
        name: value
        for name, value in vars(batch).items()
        if isinstance(value, Tensor) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    }


@dataclasses.dataclass
class _Call:
    """A layer that is running."""

    name: str
    inputs: dict[str, Tensor] | None  # None: not to be kept
    versions: dict[str, int]  # of the inputs: an operation in place counts it up
    places_used: set[str] = dataclasses.field(default_factory=set)  # of layers with several names, called from here


class LayerListener:
    """Copies what goes into every layer and what comes out, while it is attached.

    It uses forward hooks, which change nothing, and copies inputs before a layer can overwrite them in place. A layer
    that a model uses in several places has the name of the place. `calls` is in the order in which layers finish,
    which is the order of data. Inputs that a layer overwrote are copied again afterwards, as `changed`: NeMo adds
    dither to the batch in place.
    """

    def __init__(self, model: nn.Module, patterns: Iterable[str] = ("*",), limit: float = 8.0):
        self.calls: list[dict[str, Any]] = []
        self.left_out = 0  # calls beyond the limit
        self.bytes = 0
        self._patterns, self._limit = tuple(patterns), limit * GIGABYTE
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
        """Return the calls of each layer."""
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
        """Return the name of a layer in this call: its next unused name inside the innermost running layer."""
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
        """Return a copy on the CPU; a layer's output and the next layer's input share it if nothing overwrote them."""
        known = self._copies.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return known[2]
        copy = tensor.detach().to("cpu", copy=True)
        self.bytes += copy.numel() * copy.element_size()
        self._copies[id(tensor)] = (weakref.ref(tensor), tensor._version, copy)
        return copy


def _tensors(value: Any, name: str = "") -> list[tuple[str, Tensor]]:
    """Return every tensor in arguments or results, with its position or keyword."""
    if isinstance(value, Tensor):
        return [(name or "0", value)]
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    return [found for key, item in items for found in _tensors(item, f"{name}.{key}" if name else str(key))]
