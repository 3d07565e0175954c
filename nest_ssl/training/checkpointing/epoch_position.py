"""The position of a run within its epoch: the only place that changes Lightning's progress counters.

Lightning counts batches and epochs; the loader counts what it delivered. They must agree after a resume, also with
another number of ranks, and in the checkpoint of a run that ended within an epoch.
"""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import Trainer


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
