"""Measure what watching a run costs: a real run whose callbacks and loggers are active at every other step only.

Steps with and without watching run in one process, with one model, the same batches and the same random numbers. The
model's computation is not counted: it takes a hundred times as long as watching, and varies by more than that. The rest
is Lightning's loop, its loggers and the callbacks; the time that watching adds to it is the cost. Processor time is
measured, because the machine may be busy.
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.profilers import PassThroughProfiler
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader

from benchmarks.job import REST
from benchmarks.stages import StageClock
from nest_ssl.training.run import train

Mode = Literal["nothing", "ordinary", "logged"]
MODES: tuple[Mode, ...] = ("nothing", "ordinary", "nothing", "logged")  # the steps use these modes in turn
VALIDATE_EVERY = 7  # steps, so that validations follow steps of every mode
WARM_UP_STEPS, WARM_UP_VALIDATIONS = 2 * len(MODES), 2
COMPUTING = "computing"
_COMPUTES = ("training_step", "validation_step", "backward", "configure_gradient_clipping", "optimizer_zero_grad")
# Windows counts processor time in ticks of 16 ms, which are longer than the measured times
_now = time.perf_counter if sys.platform == "win32" else time.process_time


@dataclass(frozen=True)
class TimeBreakdown:
    """The seconds of a step or a validation: in total, and without the model's computation."""

    mode: Mode
    around: float
    whole: float


class Watchers(pl.Callback):
    """Switches all other callbacks and loggers on and off in turn, and counts the time with and without them."""

    def __init__(self, steps: int) -> None:
        self.steps: list[TimeBreakdown] = []
        self.validations: list[TimeBreakdown] = []
        self._count = steps
        self._clock = StageClock(_now)
        self._begun = self._validated = 0
        self._mode: Mode = "nothing"
        self._counts = False  # a step before a validation does not: part of it comes later
        self._all: dict[str, Any] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Use batches in memory: loading is not measured here."""
        batches = list(pl_module.train_dataloader())
        steps = _ready(batches[step // 2 % len(batches)] for step in range(self._count))
        validations = [_ready(loader) for loader in pl_module.val_dataloader()]
        pl_module.train_dataloader, pl_module.val_dataloader = lambda: steps, lambda: validations

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        clock, epoch = self._clock, trainer.fit_loop.epoch_loop
        self._all = {name: getattr(trainer, name) for name in ("callbacks", "loggers", "profiler")}
        for name in _COMPUTES:
            setattr(pl_module, name, clock.timed(COMPUTING, getattr(pl_module, name)))
        for name in ("log", "log_dict"):
            setattr(pl_module, name, self._if_watched(getattr(pl_module, name)))
        (optimizer,) = trainer.optimizers
        optimizer.step = _with_closure_on(clock, optimizer.step)  # type: ignore[method-assign]
        optimization = epoch.automatic_optimization  # to its end, where it frees the graph, which takes milliseconds
        optimization.run = clock.timed(COMPUTING, optimization.run)  # type: ignore[method-assign]
        advance, validate = epoch.advance, epoch.val_loop.run

        def next_step(*args: Any) -> None:
            self._book_step()
            self._begin_step(trainer)
            advance(*args)

        def next_validation() -> Any:
            self._begin_validation(trainer)
            found = validate()
            self._book_validation()
            return found

        epoch.advance = next_step  # type: ignore[method-assign, assignment]
        epoch.val_loop.run = next_validation  # type: ignore[method-assign]

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._turn_to(trainer, "logged")

    def _begin_step(self, trainer: pl.Trainer) -> None:
        self._turn_to(trainer, MODES[self._begun % len(MODES)])
        torch.manual_seed(self._begun // 2)  # the same masks with and without
        self._begun += 1
        self._counts = self._begun > WARM_UP_STEPS
        self._clock.reset()

    def _book_step(self) -> None:
        if self._counts:
            self.steps.append(self._spent())

    def _begin_validation(self, trainer: pl.Trainer) -> None:
        self._turn_to(trainer, "logged" if self._validated % 2 else "nothing")
        torch.manual_seed(0)
        self._validated += 1
        self._counts = False
        self._clock.reset()

    def _book_validation(self) -> None:
        if self._validated > WARM_UP_VALIDATIONS:
            self.validations.append(self._spent())

    def _turn_to(self, trainer: pl.Trainer, mode: Mode) -> None:
        self._mode = mode
        nothing = {"callbacks": [self], "loggers": [], "profiler": PassThroughProfiler()}
        for name, value in (nothing if mode == "nothing" else self._all).items():
            setattr(trainer, name, value)

    def _spent(self) -> TimeBreakdown:
        self._clock.enter(REST)
        self._clock.leave(REST)  # so that the clock includes the time until now
        seconds = self._clock.seconds
        return TimeBreakdown(self._mode, seconds[REST], seconds[REST] + seconds[COMPUTING])

    def _if_watched(self, log: Callable[..., None]) -> Callable[..., None]:
        """Return the model's `log`, which counts as watching and does nothing in unwatched steps."""
        on_the_clock = self._clock.timed(REST, log)
        return lambda *args, **kwargs: None if self._mode == "nothing" else on_the_clock(*args, **kwargs)


def _ready(batches: Iterable[Any]) -> DataLoader:
    return DataLoader(list(batches), batch_size=None)  # type: ignore[arg-type]


def _with_closure_on(clock: StageClock, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the optimizer's step with its closure timed, in which Lightning calls all hooks."""

    @functools.wraps(step)
    def with_closure_on(closure: Callable[[], Any]) -> Any:
        return step(clock.timed(REST, closure))

    return with_closure_on


def run_watched(cfg: DictConfig, steps: int) -> Watchers:
    """Run as `train.py` does, but without saving, which is measured separately."""
    watchers = Watchers(steps)
    with tempfile.TemporaryDirectory() as folder:
        cfg.exp_manager.update({"exp_dir": folder, "create_checkpoint_callback": False, "resume_if_exists": False})
        cfg.trainer.update({"accelerator": "cpu", "devices": 1, "strategy": "auto", "num_sanity_val_steps": 0})
        cfg.trainer.update({"max_steps": steps, "val_check_interval": VALIDATE_EVERY, "log_every_n_steps": len(MODES)})
        OmegaConf.resolve(cfg)
        train(cfg, callbacks=[watchers])
    return watchers


def costs(steps: Sequence[TimeBreakdown], validations: Sequence[TimeBreakdown]) -> dict[str, float]:
    """Return the seconds that watching adds to a step, a logged step and a validation, and their shares of the time."""
    bare, ordinary, logged = (_median(steps, mode) for mode in ("nothing", "ordinary", "logged"))
    validation = _median(validations, "logged") - _median(validations, "nothing")
    step = statistics.median(spent.whole for spent in steps if spent.mode == "nothing")
    shares = {}
    for every in (10, 50):
        cost = ((every - 1) * ordinary + logged) / every - bare
        shares[f"share_{every}"] = cost / (step + cost)
    return {
        "step_seconds": step,
        "ordinary_seconds": ordinary - bare,
        "logged_seconds": logged - bare,
        "validation_seconds": validation,
        **shares,
    }


def _median(spent: Sequence[TimeBreakdown], mode: Mode) -> float:
    return statistics.median(one.around for one in spent if one.mode == mode)
