"""Gradients of an update that is half accumulated, which a checkpoint between two batches has to hold.

Every process has its own until the update adds them up, so every one gets its own back: means of them would differ in
their last bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, distributed

Gradients = dict[str, Tensor]


def gradients_of_all_processes(model: LightningModule) -> list[Gradients]:
    """By process, on the first one; the others take part and keep nothing."""
    own = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    count = model.trainer.world_size
    if count == 1:
        return [{name: gradient.clone() for name, gradient in own.items()}]
    processes: list[Gradients] = [{} for _ in range(count)]
    for name, gradient in own.items():
        first = model.trainer.global_rank == 0
        gathered = [gradient.new_empty(gradient.shape) for _ in range(count)] if first else None
        distributed.gather(gradient.contiguous(), gathered)
        for found, one in zip(processes, gathered or [], strict=False):
            found[name] = one.cpu()
    return processes


def own_gradients(processes: Sequence[Gradients], trainer: Trainer) -> Gradients:
    """Those of this process; where there were other processes, the mean, which leads to the same sum."""
    if len(processes) == trainer.world_size:
        return processes[trainer.global_rank]
    return {name: torch.stack([found[name] for found in processes]).mean(0) for name in processes[0]}
