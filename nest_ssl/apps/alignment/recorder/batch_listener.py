"""Gather what each batch of a training run does, by hooks that change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

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
        return copied(tensor)

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
        self._batch.loss = (outputs["loss"] if isinstance(outputs, Mapping) else outputs).detach()
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


def copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _fields(batch: Any) -> dict[str, Any]:
    """Return a batch's tensors and lists of names, whatever its class."""
    values = vars(batch) if hasattr(batch, "__dict__") else {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Tensor) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    }
