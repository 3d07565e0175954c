from __future__ import annotations

import time
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback

from nest_ssl.training.callbacks.stopping import RunTimer
from nest_ssl.training.callbacks.throughput import StepTiming
from nest_ssl.training.run_length import ValidationSchedule


class Validations(Callback):
    """Records the steps at which validation ran."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.steps.append(trainer.global_step)


@pytest.mark.parametrize(
    ("interval", "limit", "expected"),
    [
        (4, None, [4, 10]),  # within epochs of 6, as Lightning and NeMo count
        (6, None, [6, 12]),
        (8, None, [8]),  # longer than an epoch: across epochs
        (1.0, None, [6, 12]),
        (5, 3, [5, 10]),  # epochs cut to 3 batches
        (4, 0.5, [4, 8, 12]),
    ],
)
def test_an_interval_longer_than_an_epoch_counts_across_epochs(
    fit: Any, regression: Any, interval: int | float, limit: int | float | None, expected: list[int]
) -> None:
    seen = Validations()
    callbacks = [ValidationSchedule(), seen]
    fit(regression(), max_steps=12, val_check_interval=interval, limit_train_batches=limit, callbacks=callbacks)
    assert seen.steps == expected


def test_a_run_ends_at_its_time_limit_and_a_resumed_run_has_the_whole_time_again(fit: Any, regression: Any) -> None:
    class Slow(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            time.sleep(0.3)

    timer = RunTimer("00:00:00:01")
    trainer = fit(regression(), max_steps=1000, callbacks=[Slow(), timer])
    assert 0 < trainer.global_step < 10
    assert timer.state_dict() == {}


def test_the_seconds_of_a_step_are_logged(fit: Any, regression: Any) -> None:
    trainer = fit(regression(), max_steps=2, log_every_n_steps=2, callbacks=[StepTiming()])
    assert trainer.callback_metrics["train_step_timing in s"] > 0
