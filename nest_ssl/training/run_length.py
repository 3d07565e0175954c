"""How many batches and optimizer steps a run has, and the settings that depend on these numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset

from nest_ssl.compat import is_accumulating
from nest_ssl.errors import ConfigError

_log = logging.getLogger(__name__)
_WARM_UP_SHARE = 10  # the warm-up that is proposed for a short run: one part in so many
_UNKNOWN, _ENDLESS = "lhotse's data has no known length", "the training data has no end"


@dataclass(frozen=True)
class RunLength:
    """How long a run is."""

    steps: int  # of the optimizer
    batches: int
    key: str  # the setting that ends the run
    epoch: int | None  # batches in an epoch; None if unknown


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


def length_warnings(trainer: Trainer, model: LightningModule, optim: Mapping[str, Any]) -> Iterator[str]:
    """Warn of a run that ends within its warm-up or before its first validation."""
    length = run_length(trainer, batches_in_epoch(model.train_dataloader(), trainer))
    if length is None:
        return
    yield from _within_warm_up(length, optim)
    if model.val_dataloader() and trainer.limit_val_batches:
        yield from _before_validation(length, trainer)


def run_length(trainer: Trainer, epoch: int | None) -> RunLength | None:
    """Return the earliest end that is known, with `epoch` batches in an epoch; None if the run has no known end."""
    together = trainer.accumulate_grad_batches
    ends = []
    if trainer.max_steps > 0:
        batches = _batches_of_steps(trainer.max_steps, together, epoch)
        ends.append(RunLength(trainer.max_steps, batches, "max_steps", epoch))
    if trainer.max_epochs is not None and trainer.max_epochs > 0 and epoch:
        steps = trainer.max_epochs * math.ceil(epoch / together)
        ends.append(RunLength(steps, trainer.max_epochs * epoch, "max_epochs", epoch))
    return min(ends, key=lambda end: end.steps, default=None)


def _batches_of_steps(steps: int, together: int, epoch: int | None) -> int:
    """Return how many batches these steps take; the last step of an epoch takes the remaining ones."""
    if not epoch:
        return steps * together
    in_epoch = math.ceil(epoch / together)
    return steps // in_epoch * epoch + min(epoch, steps % in_epoch * together)


def _within_warm_up(length: RunLength, optim: Mapping[str, Any]) -> Iterator[str]:
    schedule = optim.get("sched") or {}
    warm_up, rate = schedule.get("warmup_steps"), optim.get("lr")
    if not isinstance(warm_up, int | float) or warm_up < length.steps:
        return
    shorter = max(1, length.steps // _WARM_UP_SHARE)
    change = f"model.optim.sched.warmup_steps={shorter}"
    if schedule.get("name") == "NoamAnnealing" and isinstance(rate, int | float):
        change += f" model.optim.lr={rate * math.sqrt(shorter / warm_up):.3g}"  # whose peak is lr / sqrt(d_model * it)
    yield (
        f"the run ends after {length.steps} steps (trainer.{length.key}), within the warm-up of {warm_up:g} "
        f"(model.optim.sched.warmup_steps): the learning rate does not reach its peak and the model learns little; "
        f"a run this short learns with {change}"
    )


def _before_validation(length: RunLength, trainer: Trainer) -> Iterator[str]:
    first = _first_validation(length, trainer)
    if first is None or first <= length.batches:
        return
    change = f"trainer.val_check_interval={max(1, length.batches // 2)}"
    if (trainer.check_val_every_n_epoch or 1) > 1:
        change += " trainer.check_val_every_n_epoch=1"
    yield (
        f"the run ends after {length.batches} batches (trainer.{length.key}), before its first validation, due after "
        f"{first}: there will be no val_loss and no best checkpoint; {change} validates in time"
    )


def _first_validation(length: RunLength, trainer: Trainer) -> int | None:
    """Return the number of batches before the first validation; None if unknown."""
    interval, epochs = trainer.val_check_interval, trainer.check_val_every_n_epoch
    if epochs is None:
        return int(interval)
    if length.epoch is None:
        return None
    within = interval if isinstance(interval, int) else max(1, int(length.epoch * interval))
    return (epochs - 1) * length.epoch + within
