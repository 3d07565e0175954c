"""Runs that are too short to show anything: told before the first step, with the values that would."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from nest_ssl.training.callbacks.timing import batches_in_epoch
from nest_ssl.training.checks.start_checks import keeps_results

_WARM_UP_SHARE = 10  # of a short run, one part in so many


@dataclass(frozen=True)
class Length:
    """How long a run is; what is not known is None."""

    steps: int  # of the optimiser
    batches: int
    key: str  # that ends the run
    epoch: int | None  # batches


def check_length(cfg: DictConfig, trainer: Trainer, model: LightningModule) -> Iterator[str]:
    """Warn of a run that ends within its warm-up or before its first validation."""
    length = run_length(trainer, batches_in_epoch(model.train_dataloader(), trainer))
    if length is None or not keeps_results(cfg):
        return
    optim: Any = OmegaConf.to_container(cfg.model.get("optim") or OmegaConf.create())
    yield from _within_warm_up(length, optim)
    if model.val_dataloader() and trainer.limit_val_batches:
        yield from _before_validation(length, trainer)


def run_length(trainer: Trainer, epoch: int | None) -> Length | None:
    """The end that comes first, of those that are known; None if the run goes on until it is stopped."""
    together = trainer.accumulate_grad_batches
    ends = []
    if trainer.max_steps > 0:
        ends.append(Length(trainer.max_steps, _batches(trainer.max_steps, together, epoch), "max_steps", epoch))
    if trainer.max_epochs is not None and trainer.max_epochs > 0 and epoch:
        steps = trainer.max_epochs * math.ceil(epoch / together)
        ends.append(Length(steps, trainer.max_epochs * epoch, "max_epochs", epoch))
    return min(ends, key=lambda end: end.steps, default=None)


def _batches(steps: int, together: int, epoch: int | None) -> int:
    """Batches of so many steps; the last step of an epoch takes what is left of it."""
    if not epoch:
        return steps * together
    in_epoch = math.ceil(epoch / together)
    return steps // in_epoch * epoch + min(epoch, steps % in_epoch * together)


def _within_warm_up(length: Length, optim: Mapping[str, Any]) -> Iterator[str]:
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


def _before_validation(length: Length, trainer: Trainer) -> Iterator[str]:
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


def _first_validation(length: Length, trainer: Trainer) -> int | None:
    """The batches before it; None if that is not known."""
    interval, epochs = trainer.val_check_interval, trainer.check_val_every_n_epoch
    if epochs is None:
        return int(interval)
    if length.epoch is None:
        return None
    within = interval if isinstance(interval, int) else max(1, int(length.epoch * interval))
    return (epochs - 1) * length.epoch + within
