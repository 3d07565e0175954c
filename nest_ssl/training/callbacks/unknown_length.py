"""What a run has to be told as a number where its data does not say how many batches it has."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer

from nest_ssl.data.lhotse.cut_loader import CutLoader
from nest_ssl.errors import ConfigError

_UNKNOWN = "lhotse's data has no known length"


def check_limits(trainer: Trainer, train: Any, validation: Any) -> None:
    """Refuse shares of an unknown number, and ends that never come."""
    if isinstance(train, CutLoader):
        _check_training(trainer, endless=train.endless)
    limit = trainer.limit_val_batches
    for loader in validation if isinstance(validation, list) else [validation]:
        if not isinstance(loader, CutLoader) or not limit or isinstance(limit, int):
            continue
        if loader.endless:
            raise _needs_number("limit_val_batches", limit, "batches", "the validation data has no end")
        if limit != 1.0:
            raise _needs_number("limit_val_batches", limit, "batches", _UNKNOWN)


def _check_training(trainer: Trainer, endless: bool) -> None:
    limit, interval = trainer.limit_train_batches, trainer.val_check_interval
    if isinstance(limit, int):
        return
    if limit is not None and limit != 1.0:
        raise _needs_number("limit_train_batches", limit, "batches", _UNKNOWN)
    if endless and trainer.max_steps < 0 and trainer.max_epochs not in (None, -1):
        raise _needs_number("max_steps", trainer.max_steps, "steps", "the training data has no end")
    if trainer.limit_val_batches and isinstance(interval, float) and (endless or interval != 1.0):
        raise _needs_number(
            "val_check_interval", interval, "steps", "the training data has no end" if endless else _UNKNOWN
        )


def _needs_number(name: str, value: Any, unit: str, reason: str) -> ConfigError:
    return ConfigError(f"trainer.{name}: is {value!r}, but {reason}; give a whole number of {unit}")
