"""Measure the time of each stage of a step; the clock always counts for the innermost running stage."""

from __future__ import annotations

import functools
import importlib
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from torch import nn

from benchmarks.job import (
    BACKWARD,
    DECODER,
    ENCODER,
    FEATURES,
    OPTIMIZER,
    QUANTIZER,
    REST,
    STAGES,
    SUBSAMPLING,
    WAITING,
)

# functions of nest_ssl.model.fast.prediction, which uses the modules' weights without calling the modules
_FAST = {
    "_features": FEATURES,
    "_tokens": QUANTIZER,
    "subsample": SUBSAMPLING,
    "encode": ENCODER,
    "_likelihood": DECODER,
}


class StageClock:
    """Counts seconds by stage; a stage inside another one stops the other's clock."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running = [REST]
        self._now = now
        self._since = now()

    def enter(self, stage: str) -> None:
        self._switch()
        self._running.append(stage)

    def leave(self, stage: str) -> None:
        self._switch()
        assert self._running.pop() == stage, stage

    def reset(self) -> None:
        self.seconds.clear()
        self._since = self._now()

    def _switch(self) -> None:
        now = self._now()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted for a stage."""

        @functools.wraps(function)
        def on_the_clock(*args: Any, **kwargs: Any) -> Any:
            self.enter(stage)
            result = function(*args, **kwargs)
            self.leave(stage)
            return result

        return on_the_clock


class StageTimes(pl.Callback):
    """Measures a model's stages; steps before `first` do not count."""

    def __init__(self, first: int) -> None:
        self.clock = StageClock()
        self.first = first
        self.steps = 0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if getattr(pl_module, "fast", False):
            prediction = importlib.import_module("nest_ssl.model.fast.prediction")
            for name, stage in _FAST.items():
                setattr(prediction, name, self.clock.timed(stage, getattr(prediction, name)))
            return
        parts = {
            FEATURES: [pl_module.preprocessor],
            QUANTIZER: [pl_module.quantizer],
            SUBSAMPLING: [pl_module.encoder.pre_encode],
            ENCODER: [pl_module.encoder],
            DECODER: [pl_module.decoder, pl_module.loss],
        }
        for stage, modules in parts.items():
            for module in modules:
                self._watch(stage, module)

    def _watch(self, stage: str, module: nn.Module) -> None:
        module.register_forward_pre_hook(lambda *_: self.clock.enter(stage))
        module.register_forward_hook(lambda *_: self.clock.leave(stage))

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step >= 1:
            self.clock.leave(WAITING)

    def on_before_backward(self, *_: Any) -> None:
        self.clock.enter(BACKWARD)

    def on_after_backward(self, *_: Any) -> None:
        self.clock.leave(BACKWARD)

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.clock.enter(OPTIMIZER)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.clock.leave(OPTIMIZER)
        self.steps += 1
        if trainer.global_step == self.first:
            self.clock.reset()
        self.clock.enter(WAITING)

    def seconds_per_step(self) -> dict[str, float]:
        counted = max(1, self.steps - self.first)
        return {stage: self.clock.seconds[stage] / counted for stage in STAGES}
