"""Counting optimiser steps: how many a run will take, which shapes most schedules, and which of them is logged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from nest_ssl.compat import is_accumulating


def steps_in_run(trainer: Trainer, loader: DataLoader | None, schedule: Mapping[str, Any] | None = None) -> int | None:
    """`trainer.max_steps`; else the schedule's own `max_steps`; else what the epochs amount to; None if unknown."""
    if trainer.max_steps >= 0:
        return trainer.max_steps
    scheduled = (schedule or {}).get("max_steps")
    if scheduled is not None and scheduled >= 0:
        return scheduled
    batches = None if loader is None else _batches_per_rank(loader, trainer.world_size)
    if batches is None or trainer.max_epochs is None or trainer.max_epochs < 0:
        return None
    return optimizer_steps(
        batches,
        epochs=trainer.max_epochs,
        accumulate_grad_batches=trainer.accumulate_grad_batches,
        limit_train_batches=trainer.limit_train_batches,
    )


def will_log(trainer: Trainer) -> bool:
    """Whether the step that is being taken ends with a line in the logs; a batch that only accumulates does not."""
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]
    due = bool(every) and (trainer.global_step + 1) % every == 0
    return due and not is_accumulating(trainer)


def optimizer_steps(
    batches: int, *, epochs: int, accumulate_grad_batches: int, limit_train_batches: int | float | None
) -> int:
    """Steps that `batches` an epoch give: the limit is a count if an integer, else a share (None is all)."""
    if isinstance(limit_train_batches, int):
        batches = min(batches, limit_train_batches)
    elif limit_train_batches is not None:
        batches = int(batches * limit_train_batches)
    return math.ceil(batches / accumulate_grad_batches) * epochs


def _batches_per_rank(loader: DataLoader, world_size: int) -> int | None:
    """Batches of one rank before Lightning shards the loader; None for a stream of unknown length."""
    try:
        if loader.batch_size is None:
            return len(loader)  # a batch sampler of its own counts its own batches
        samples = math.ceil(len(loader.dataset) / world_size)  # type: ignore[arg-type]
    except TypeError:
        return None
    return (math.floor if loader.drop_last else math.ceil)(samples / loader.batch_size)
