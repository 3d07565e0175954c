"""Gradients of an update that is half accumulated, which a checkpoint between two batches has to hold.

Every process has its own until the update adds them up, so every one gets its own back: means of them would differ in
their last bits. Only where the weights are divided among processes are the means taken after every batch, and each
process has a part of them; a checkpoint then holds the whole, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, distributed

from nest_ssl.compat import device_mesh

Gradients = dict[str, Tensor]


def gradients_of_all_processes(model: LightningModule) -> list[Gradients]:
    """By process, or their mean alone; on the first one. The others take part and keep nothing."""
    own = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    count, first = model.trainer.world_size, model.trainer.is_global_zero
    if _is_divided(model):
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
    """Those of this process; where others saved them, or it has parts of a mean, the mean: it leads to the same sum."""
    if len(processes) == model.trainer.world_size and not _is_divided(model):
        return processes[model.trainer.global_rank]
    return {name: torch.stack([found[name] for found in processes]).mean(0) for name in processes[0]}


def put_back(gradients: Mapping[str, Tensor], model: LightningModule) -> None:
    """Make the next batch add to these; of divided weights, every process takes its part."""
    for name, gradient in gradients.items():
        parameter, gradient = model.get_parameter(name), gradient.to(model.device)
        if _is_divided(model):
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(parameter, DTensor)
            gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
        parameter.grad = gradient


def _is_divided(model: LightningModule) -> bool:
    return device_mesh(model) is not None
