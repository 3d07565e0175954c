"""SIGTERM (preemption) and Ctrl-C: all ranks finish the same step, write a checkpoint, and leave."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import distributed

from nest_ssl.data.loading.resumable import ResumableLoader
from nest_ssl.training.callbacks.hung_loader import HungLoaderWatch

_log = logging.getLogger(__name__)


class Stopped(SIGTERMException):
    """The outside world said stop; raised between two steps, when everything can be saved."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = 128 + signal_number  # as shells have it
        super().__init__(self.exit_code)
        self.name = signal.Signals(signal_number).name


class StopOnSignal(Callback):
    """Takes the place of Lightning's handlers, which talk to other ranks from within a signal and leave each by itself.

    A signal to any rank stops all of them after the same step: they ask each other before every batch. A run of one
    process also asks while it waits for a worker, which may hang on a file; a `HungLoaderWatch` ends any other wait for
    data that does not end. During a validation it waits for its end. The second signal is left to whoever would have
    had the first.
    """

    def __init__(self) -> None:
        self._received = 0
        self._replaced: dict[int, Any] = {}
        self._group: Any = None  # over the processors' network: nothing waits for a GPU
        self._loader: ResumableLoader | None = None
        self._validation_waits_since: float | None = None
        self._watch: HungLoaderWatch | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(trainer.train_dataloader, ResumableLoader):
            return
        if trainer.world_size > 1:
            self._group = distributed.new_group(backend="gloo")
        self._loader = trainer.train_dataloader
        trainer.train_dataloader.between_batches = self._raise_if_told
        if self._group is None:  # other ranks may be within the step already, which needs this one
            trainer.train_dataloader.while_waiting = self._raise_if_told
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._replaced[number] = signal.signal(number, self._remember)
            self._watch = HungLoaderWatch(self._waits_since)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._put_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._put_back()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_waits_since = time.monotonic()

    def on_validation_batch_start(self, *_: Any) -> None:
        self._validation_waits_since = None

    def on_validation_batch_end(self, *_: Any) -> None:
        self._validation_waits_since = time.monotonic()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_waits_since = None

    def _waits_since(self) -> float | None:
        training = self._loader.waits_since if self._loader is not None else None
        return self._validation_waits_since if training is None else training

    def _remember(self, number: int, _: FrameType | None) -> None:
        if self._received:
            self._put_back()
            signal.raise_signal(number)
            return
        self._received = number
        _log.info("%s: stopping after this step; once more to stop at once", signal.Signals(number).name)

    def _raise_if_told(self) -> None:
        received = self._received
        if self._group is not None:
            heard = torch.tensor(received)
            distributed.all_reduce(heard, distributed.ReduceOp.MAX, group=self._group)
            received = int(heard)
        if received:
            raise Stopped(received)

    def _put_back(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        while self._replaced:
            signal.signal(*self._replaced.popitem())
