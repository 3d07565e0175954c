"""The progress of a run: a bar and a line of numbers on a terminal, elsewhere a plain line every 15 seconds."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor

from nest_ssl.printable import say
from nest_ssl.training.callbacks.throughput import Throughput

_REFRESH_SECONDS = 0.2  # reading a loss waits for the GPU, so not at every step
_LINE_SECONDS = 15.0
_RECENT_LOSSES = 50  # in the mean that is shown: losses of single batches vary too much


class _Bar(Progress):
    """The bar, with the numbers below it: both would not fit into 80 columns."""

    numbers = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.numbers, no_wrap=True, overflow="ellipsis")


class TrainingProgress(Callback):
    """Shows steps, losses, learning rate, speed, data wait and time left; in ASCII if the output is not UTF-8.

    The training loss is a running mean over the newest batches.
    """

    def __init__(self, throughput: Throughput, interactive: bool | None = None) -> None:
        self.throughput = throughput
        self.interactive = sys.stdout.isatty() if interactive is None else interactive
        self._bar: _Bar | None = None
        self._task = TaskID(0)
        self._shown_at = 0.0
        self._shown_step = -1
        self._first_step = 0
        self._last_step: int | None = None  # None if it is not known
        self._started_at = 0.0
        self._losses: deque[Tensor] = deque(maxlen=_RECENT_LOSSES)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_step, self._started_at = trainer.global_step, time.monotonic()
        self._shown_at = self._started_at
        last = trainer.estimated_stepping_batches
        self._last_step = int(last) if 0 < last < math.inf else None
        if not trainer.is_global_zero or not self.interactive:
            return
        self._bar = _Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),  # the rest of the line
            TextColumn("{task.fields[steps]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(),
            expand=True,
            refresh_per_second=5,
        )
        self._task = self._bar.add_task(
            "train", total=self._last_step, completed=trainer.global_step, steps=self._steps(trainer)
        )
        self._bar.numbers = self._numbers(trainer)
        self._bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss: Tensor | None = getattr(pl_module, "shown_loss", None)
        if loss is not None:
            self._losses.append(loss)
        seconds = _REFRESH_SECONDS if self.interactive else _LINE_SECONDS
        first = trainer.global_step == self._first_step + 1
        if first or time.monotonic() - self._shown_at >= seconds:
            self._show(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description="validate", refresh=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._show(trainer)
            if self._bar is not None:
                self._bar.console.print(Text(f"step {self._steps(trainer)}  {self._numbers(trainer)}"))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._shown_step != trainer.global_step:
            self._show(trainer)
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _show(self, trainer: Trainer) -> None:
        self._shown_at, self._shown_step = time.monotonic(), trainer.global_step
        if not trainer.is_global_zero:
            return
        recent = self.throughput.recent()
        audio, wait = recent.audio_seconds_per_second, recent.data_wait_share
        speed = f"  {audio:.3g} audio s/s  data wait {wait:.0%}" if recent.batches else ""
        if self._bar is not None:
            self._bar.numbers = f"{self._numbers(trainer)}{speed}"
            steps = self._steps(trainer)
            self._bar.update(self._task, description="train", completed=trainer.global_step, steps=steps)
        elif not self.interactive:
            rate = (trainer.global_step - self._first_step) / max(time.monotonic() - self._started_at, 1e-9)
            left = ""
            if self._last_step is not None and rate > 0:  # at the present pace, validations included
                left = f"  left {timedelta(seconds=round((self._last_step - trainer.global_step) / rate))}"
            pace = f"{rate:.2f} steps/s{speed}{left}"
            say(f"step {self._steps(trainer)}  {self._numbers(trainer)}  {pace}", flush=True)

    def _steps(self, trainer: Trainer) -> str:
        return f"{trainer.global_step}" if self._last_step is None else f"{trainer.global_step}/{self._last_step}"

    def _numbers(self, trainer: Trainer) -> str:
        parts = []
        if self._losses:
            losses = torch.stack(list(self._losses))
            parts.append(f"mean train_loss {float(losses[losses.isfinite()].mean()):.3f}")
        if "val_loss" in trainer.callback_metrics:
            parts.append(f"val_loss {float(trainer.callback_metrics['val_loss']):.3f}")
        if trainer.optimizers:
            parts.append(f"lr {trainer.optimizers[0].param_groups[0]['lr']:.2e}")
        return "  ".join(parts)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
