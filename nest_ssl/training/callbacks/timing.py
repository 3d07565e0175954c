"""Clocks: how long a step takes, when a validation is due, when the run must end."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from torch.utils.data import IterableDataset

from nest_ssl.training.callbacks.unknown_length import check_limits
from nest_ssl.training.optim import will_log

_log = logging.getLogger(__name__)


class StepTiming(Callback):
    """Logs the seconds of a training step under NeMo's name, data loading not included; the mean over processes."""

    def __init__(self) -> None:
        self._start = 0.0
        self._wanted = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._wanted = will_log(trainer)
        self._start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._wanted:
            seconds, several = time.perf_counter() - self._start, trainer.world_size > 1
            pl_module.log("train_step_timing in s", seconds, on_step=True, batch_size=1, sync_dist=several)


class RunTimer(Timer):
    """`max_time_per_run`: ends this run after a time; a resumed one starts its clock anew."""

    def __init__(self, duration: str) -> None:
        super().__init__(duration, verbose=False)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return


class RunEarlyStopping(EarlyStopping):
    """Lightning's early stopping; a continued run has the patience of its configuration, not of its checkpoint."""

    @property
    def state_key(self) -> str:
        return super().state_key.replace(type(self).__qualname__, EarlyStopping.__qualname__, 1)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})


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


def batches_in_epoch(loader: Any, trainer: Trainer) -> int | None:
    """Training batches that one process sees in an epoch; None for a stream of unknown length."""
    try:
        batches = len(loader)
    except TypeError:
        return None
    shared = trainer.world_size > 1 and not isinstance(loader.dataset, IterableDataset)
    if shared and loader.batch_size is not None:  # Lightning will give each process its part
        part = math.ceil(len(loader.dataset) / trainer.world_size) / loader.batch_size
        batches = math.floor(part) if loader.drop_last else math.ceil(part)
    limit = trainer.limit_train_batches
    if limit is None:
        return batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)
