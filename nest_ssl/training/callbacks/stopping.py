"""End a run before its last step: after a signal, a time limit, or a validation loss that no longer improves.

After SIGTERM (preemption) or Ctrl-C, all ranks finish the same step, write a checkpoint, and exit.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import distributed

from nest_ssl.data.loading.resumable import ResumableLoader

_log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds that one batch may take after a signal
_LOOK_EVERY = 0.5  # seconds


class Stopped(SIGTERMException):
    """A signal asked the run to stop; raised between two steps, when everything can be saved."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = 128 + signal_number  # the shells' convention
        super().__init__(self.exit_code)
        self.name = signal.Signals(signal_number).name


class StopOnSignal(Callback):
    """Replaces Lightning's signal handlers, which communicate inside a handler and let each rank exit by itself.

    Before every batch the ranks exchange the signals that they received, so all stop after the same step. A run of one
    process also checks while it waits for a worker, which may hang on a file; `HungLoaderWatch` ends any other wait for
    data that does not end. A validation is finished first. A second signal goes to the former handler.
    """

    def __init__(self) -> None:
        self._received = 0
        self._replaced: dict[int, Any] = {}
        self._group: Any = None  # of CPU processes (gloo), so that no rank waits for a GPU
        self._trainer: Trainer | None = None
        self._watch: HungLoaderWatch | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(trainer.train_dataloader, ResumableLoader):
            return
        if trainer.world_size > 1:
            self._group = distributed.new_group(backend="gloo")
        self._trainer = trainer
        trainer.train_dataloader.between_batches = self._raise_if_signalled
        if self._group is None:  # other ranks may already be in the step, which needs this one
            trainer.train_dataloader.while_waiting = self._raise_if_signalled
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._replaced[number] = signal.signal(number, self._remember)
            self._watch = HungLoaderWatch(self._waits_since)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore_handlers()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore_handlers()

    def _waits_since(self) -> float | None:
        """Return when the present wait for a batch began, of training or of a validation; None if there is none."""
        assert self._trainer is not None
        loaders: list[Any] = [self._trainer.train_dataloader, *(self._trainer.val_dataloaders or [])]
        waits = (getattr(loader, "waits_since", None) for loader in loaders)
        return next((since for since in waits if since is not None), None)

    def _remember(self, number: int, _: FrameType | None) -> None:
        if self._received:
            self._restore_handlers()
            signal.raise_signal(number)
            return
        self._received = number
        _log.info("%s: stopping after this step; once more to stop at once", signal.Signals(number).name)

    def _raise_if_signalled(self) -> None:
        received = self._received
        if self._group is not None:
            of_all_ranks = torch.tensor(received)
            distributed.all_reduce(of_all_ranks, distributed.ReduceOp.MAX, group=self._group)
            received = int(of_all_ranks)
        if received:
            raise Stopped(received)

    def _restore_handlers(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        while self._replaced:
            signal.signal(*self._replaced.popitem())


class HungLoaderWatch:
    """Ends the process if, after a signal, one wait for data takes more than `PATIENCE` seconds.

    A read that never returns keeps Python's signal handlers from running, so a thread learns of signals through a
    socket that the interpreter itself writes to. Nothing is saved: within a batch, random numbers are half drawn.
    `waits_since` tells when the present wait began (`time.monotonic()`), or None while a step is computed or saved.
    Create and close the watch in the main thread.
    """

    def __init__(self, waits_since: Callable[[], float | None]) -> None:
        self._waits_since = waits_since
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="hung loader watch", daemon=True)
        self._thread.start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._ignore_in_child)

    def close(self) -> None:
        signal.set_wakeup_fd(self._previous)
        self._writer.shutdown(socket.SHUT_WR)  # reaches the thread even while forked workers hold copies
        self._thread.join()
        self._writer.close()
        self._reader.close()

    def _ignore_in_child(self) -> None:
        """In a forked worker: signals to the worker are not signals to the run."""
        if self._writer.fileno() >= 0:
            signal.set_wakeup_fd(-1)

    def _listen(self) -> None:
        stop: tuple[int, float] | None = None  # the first signal to stop, and when it came
        while True:
            self._reader.settimeout(None if stop is None else _LOOK_EVERY)
            try:
                received = self._reader.recv(1)
            except TimeoutError:
                received = None
            if received == b"":
                return
            if stop is None and received is not None and received[0] in (signal.SIGINT, signal.SIGTERM):
                stop = received[0], time.monotonic()
            if stop is not None and self._hangs(stop[1]):
                _log.error(
                    "%s: the data has not come for %d s, so this process leaves without saving; the same command "
                    "continues from the last checkpoint",
                    *(signal.Signals(stop[0]).name, PATIENCE),
                )
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(128 + stop[0])  # the main thread hangs, so it cannot exit

    def _hangs(self, signalled_at: float) -> bool:
        since = self._waits_since()
        return since is not None and time.monotonic() - max(since, signalled_at) > PATIENCE


class RunTimer(Timer):
    """`max_time_per_run`: ends this start of the run after a time; a resumed run has the whole time again."""

    def __init__(self, duration: str) -> None:
        super().__init__(duration, verbose=False)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return


class RunEarlyStopping(EarlyStopping):
    """Lightning's early stopping; a resumed run has the patience of its configuration, not of its checkpoint."""

    @property
    def state_key(self) -> str:
        return super().state_key.replace(type(self).__qualname__, EarlyStopping.__qualname__, 1)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})
