"""A run that is too short for its settings warns before its first step, and no other run does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from nest_ssl.training import checks
from nest_ssl.training.checks import DataChecks, check_length
from nest_ssl.training.run_length import ValidationSchedule


class Counts(Callback):
    """Counts the steps, batches and validations of a run."""

    def __init__(self) -> None:
        self.batches = self.validations = self.steps = 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.batches += 1
        self.steps = trainer.global_step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validations += 1


def _cfg(**optim: Any) -> DictConfig:
    return OmegaConf.create({"model": {"optim": optim}, "exp_manager": {}})


@pytest.fixture
def warned(
    fit: Any,
    regression: Any,
    caplog: pytest.LogCaptureFixture,
    our_messages: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Return a function that trains a layer and returns the warnings and the counts of the run."""
    monkeypatch.setattr(checks, "DATA_CHECKS", [check_length])

    def warned(cfg: DictConfig, samples: int = 6, **trainer: Any) -> tuple[list[str], Counts]:
        caplog.clear()
        counts = Counts()
        with caplog.at_level(logging.WARNING, "nest_ssl"):
            fit(regression(samples=samples), callbacks=[ValidationSchedule(), DataChecks(cfg), counts], **trainer)
        return our_messages(), counts

    return warned


@given(
    samples=st.integers(1, 7),
    max_steps=st.sampled_from([-1, 1, 2, 3, 5, 9]),
    max_epochs=st.sampled_from([-1, 1, 2, 3]),
    interval=st.sampled_from([1, 2, 4, 8, 1.0, 0.5]),
    every=st.sampled_from([None, 1, 2]),
    together=st.integers(1, 3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_only_a_run_of_known_length_that_never_validates_gives_a_warning(
    warned: Any, samples: int, max_steps: int, max_epochs: int, interval: float, every: int | None, together: int
) -> None:
    if max_steps < 0 and max_epochs < 0:
        max_steps = 4
    if every is None and isinstance(interval, float):
        interval = 2
    if isinstance(interval, float) and int(samples * interval) < 1:
        return  # Lightning refuses this
    options = {"max_steps": max_steps, "max_epochs": max_epochs, "val_check_interval": interval}
    lines, counts = warned(_cfg(), samples, check_val_every_n_epoch=every, accumulate_grad_batches=together, **options)
    assert bool(lines) == (counts.validations == 0), (lines, counts.batches)
    for line in lines:
        assert f"the run ends after {counts.batches} batches " in line


def test_the_proposed_interval_validates(warned: Any) -> None:
    (line,), counts = warned(_cfg(), max_steps=5, val_check_interval=2500)
    assert line == (
        "the run ends after 5 batches (trainer.max_steps), before its first validation, due after 2500: there "
        "will be no val_loss and no best checkpoint; trainer.val_check_interval=2 validates in time"
    )
    assert counts.validations == 0
    lines, counts = warned(_cfg(), max_steps=5, val_check_interval=2)
    assert not lines
    assert counts.validations == 2


def test_a_run_shorter_than_its_warm_up_gets_a_warm_up_with_the_same_peak(warned: Any) -> None:
    noam = {"lr": 5.0, "sched": {"name": "NoamAnnealing", "d_model": 512, "warmup_steps": 25000}}
    (line,), _ = warned(_cfg(**noam), max_epochs=10, val_check_interval=2)
    assert line == (
        "the run ends after 60 steps (trainer.max_epochs), within the warm-up of 25000 "
        "(model.optim.sched.warmup_steps): the learning rate does not reach its peak and the model learns little; "
        "a run this short learns with "
        "model.optim.sched.warmup_steps=6 model.optim.lr=0.0775"
    )
    assert pytest.approx(5.0 / (512 * 25000) ** 0.5, rel=1e-3) == 0.0775 / (512 * 6) ** 0.5  # Noam's peak


@pytest.mark.parametrize(
    "schedule",
    [{"name": "CosineAnnealing", "warmup_steps": 20}, {"name": "CosineAnnealing", "warmup_ratio": 0.1}, None],
)
def test_other_schedules_keep_their_rate(warned: Any, schedule: dict[str, Any] | None) -> None:
    lines, _ = warned(_cfg(lr=0.1, sched=schedule), max_steps=20, val_check_interval=2)
    expected = ["model.optim.sched.warmup_steps=2"] if schedule and "warmup_steps" in schedule else []
    assert [line.rpartition(" learns with ")[2] for line in lines] == expected


def test_a_run_for_a_recording_gives_no_warning(warned: Any) -> None:
    cfg = _cfg(sched={"name": "NoamAnnealing", "warmup_steps": 25000})
    cfg.exp_manager = None
    assert warned(cfg, max_steps=1, val_check_interval=2500)[0] == []
