"""How many batches and optimizer steps a run has, and when it validates and logs."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset

from nest_ssl.compat import is_accumulating
from nest_ssl.errors import ConfigError

_log = logging.getLogger(__name__)
_UNKNOWN, _ENDLESS = "lhotse's data has no known length", "the training data has no end"


def batches_in_epoch(loader: Any, trainer: Trainer) -> int | None:
    """Return how many training batches one rank sees in an epoch; None for a stream of unknown length."""
    try:
        batches = len(loader)
    except TypeError:
        return None
    sharded = trainer.world_size > 1 and not isinstance(loader.dataset, IterableDataset)
    if sharded and loader.batch_size is not None:  # Lightning will give each rank its share
        batches = _batches_of_rank(loader, trainer.world_size)
    return _limited(batches, trainer.limit_train_batches)


def steps_in_run(trainer: Trainer, loader: DataLoader | None, schedule: Mapping[str, Any] | None = None) -> int | None:
    """Return how many optimizer steps a schedule has to span, by NeMo's rules; None if unknown.

    `trainer.max_steps` counts; else the schedule's own `max_steps`; else the steps of all epochs.
    """
    if trainer.max_steps >= 0:
        return trainer.max_steps
    scheduled = (schedule or {}).get("max_steps")
    if scheduled is not None and scheduled >= 0:
        return scheduled
    if loader is None or trainer.max_epochs is None or trainer.max_epochs < 0:
        return None
    try:  # NeMo divides streams among the ranks too; a batch sampler counts the batches of its own rank
        batches = len(loader) if loader.batch_size is None else _batches_of_rank(loader, trainer.world_size)
    except TypeError:
        return None
    batches = _limited(batches, trainer.limit_train_batches)
    return math.ceil(batches / trainer.accumulate_grad_batches) * trainer.max_epochs


def will_log(trainer: Trainer) -> bool:
    """Return whether the current step will be logged; a batch that only accumulates gradients will not."""
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]
    due = bool(every) and (trainer.global_step + 1) % every == 0
    return due and not is_accumulating(trainer)


def _batches_of_rank(loader: Any, world_size: int) -> int:
    batches = math.ceil(len(loader.dataset) / world_size) / loader.batch_size
    return math.floor(batches) if loader.drop_last else math.ceil(batches)


def _limited(batches: int, limit: int | float | None) -> int:
    """Apply `limit_train_batches`: a count if an integer, else a share; None is all."""
    if limit is None:
        return batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)


class ValidationSchedule(Callback):
    """Counts `val_check_interval` across epochs where an epoch has fewer steps, which Lightning refuses."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_limits(trainer, pl_module.train_dataloader(), pl_module.val_dataloader())
        interval = trainer.val_check_interval
        if not isinstance(interval, int) or trainer.check_val_every_n_epoch is None or not trainer.limit_val_batches:
            return
        batches = batches_in_epoch(pl_module.train_dataloader(), trainer)
        if batches is None or interval > batches:
            trainer.check_val_every_n_epoch = None
            known = "it is not known how many an epoch has" if batches is None else f"an epoch has {batches}"
            _log.info("validation every %d steps, counted across epochs (%s)", interval, known)


def check_limits(trainer: Trainer, train: Any, validation: Any) -> None:
    """Raise ConfigError for a share of an unknown number of batches, and for a run that would never end."""
    if not getattr(train, "has_length", True):
        _check_training_limits(trainer, endless=train.endless)
    limit = trainer.limit_val_batches
    for loader in validation if isinstance(validation, list) else [validation]:
        if getattr(loader, "has_length", True) or not limit or isinstance(limit, int):
            continue
        if loader.endless:
            raise _needs_number("limit_val_batches", limit, "batches", "the validation data has no end")
        if limit != 1.0:
            raise _needs_number("limit_val_batches", limit, "batches", _UNKNOWN)


def _check_training_limits(trainer: Trainer, endless: bool) -> None:
    limit, interval = trainer.limit_train_batches, trainer.val_check_interval
    if isinstance(limit, int):
        return
    if limit is not None and limit != 1.0:
        raise _needs_number("limit_train_batches", limit, "batches", _UNKNOWN)
    if endless and trainer.max_steps < 0 and trainer.max_epochs not in (None, -1):
        raise _needs_number("max_steps", trainer.max_steps, "steps", _ENDLESS)
    if trainer.limit_val_batches and isinstance(interval, float) and (endless or interval != 1.0):
        raise _needs_number("val_check_interval", interval, "steps", _ENDLESS if endless else _UNKNOWN)


def _needs_number(name: str, value: Any, unit: str, reason: str) -> ConfigError:
    return ConfigError(f"trainer.{name}: is {value!r}, but {reason}; give a whole number of {unit}")
