"""What a checkpoint within an epoch needs: the position in the epoch, and the gradients since the last step.

Lightning counts batches and epochs; the loader counts what it delivered. They must agree after a resume, also with
another number of ranks, and in the checkpoint of a run that ended within an epoch. Only this file changes Lightning's
progress counters.

Each rank has its own gradients until the optimizer step sums them, so a checkpoint stores and restores them per rank:
their mean would differ in the last bits. With sharded weights (FSDP), gradients are averaged after every batch and each
rank has a shard; the checkpoint then contains the full gradients once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, distributed

from nest_ssl.compat import device_mesh

Gradients = dict[str, Tensor]


def agree_on_position(trainer: Trainer) -> None:
    """Before the first step, tell the loader the length of an epoch, and Lightning where the loader resumes."""
    from nest_ssl.data.loading.resumable import ResumableLoader  # a model that is only restored needs no loader

    loader = trainer.train_dataloader
    if not isinstance(loader, ResumableLoader):
        return
    if math.isfinite(trainer.num_training_batches):
        loader.batches_per_epoch = int(trainer.num_training_batches)
    if loader.resumed_at is not None:  # the counters of the checkpoint belong to another number of ranks
        count: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        count.ready = count.started = count.processed = count.completed = loader.resumed_at


def keep_epoch_unfinished(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Correct a checkpoint of a run that ends within an epoch: Lightning counts that epoch as complete.

    A longer run can then resume within it.
    """
    epochs, batches = trainer.fit_loop.epoch_progress.current, trainer.fit_loop.epoch_loop.batch_progress
    within = 0 < batches.current.completed < trainer.num_training_batches
    if within and not batches.is_last_batch and epochs.completed == epochs.ready:
        counted = checkpoint["loops"]["fit_loop"]["epoch_progress"]
        for counts in (counted["total"], counted["current"]):
            counts["processed"] -= 1
            counts["completed"] -= 1
        checkpoint["epoch"] -= 1


def gradients_of_all_ranks(model: LightningModule) -> list[Gradients]:
    """Return the gradients of each rank, or only their mean if sharded, on rank 0; call it on all ranks."""
    own = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    count, first = model.trainer.world_size, model.trainer.is_global_zero
    if _is_sharded(model):
        mean: Gradients = {}
        for name, gradient in own.items():
            whole = gradient.full_tensor()  # type: ignore[attr-defined]  # a DTensor
            if first:
                mean[name] = whole.cpu()
        return [mean]
    if count == 1:
        return [{name: gradient.clone() for name, gradient in own.items()}]
    processes: list[Gradients] = [{} for _ in range(count)]
    for name, gradient in own.items():
        gathered = [gradient.new_empty(gradient.shape) for _ in range(count)] if first else None
        distributed.gather(gradient.contiguous(), gathered)
        for found, one in zip(processes, gathered or [], strict=False):
            found[name] = one.cpu()
    return processes


def own_gradients(processes: Sequence[Gradients], model: LightningModule) -> Gradients:
    """Return this rank's gradients or, if sharded or with another number of ranks, their mean: the sum is equal."""
    if len(processes) == model.trainer.world_size and not _is_sharded(model):
        return processes[model.trainer.global_rank]
    return {name: torch.stack([found[name] for found in processes]).mean(0) for name in processes[0]}


def put_back(gradients: Mapping[str, Tensor], model: LightningModule) -> None:
    """Set the gradients that the next batch adds to; with sharded weights, each rank takes its shard."""
    for name, gradient in gradients.items():
        parameter, gradient = model.get_parameter(name), gradient.to(model.device)
        if _is_sharded(model):
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(parameter, DTensor)
            gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
        parameter.grad = gradient


def _is_sharded(model: LightningModule) -> bool:
    return device_mesh(model) is not None
