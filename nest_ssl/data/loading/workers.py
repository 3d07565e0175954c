"""Worker processes that can be interrupted: signals while they start and work, and a wait for them that can end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from nest_ssl.compat import end_workers, worker_batches_class, worker_check_interval, worker_processes

_WorkerBatches: Any = worker_batches_class()
_CHECK_EVERY = worker_check_interval()  # seconds
_LISTEN_EVERY = 0.5  # seconds
_SECONDS_TO_FINISH = 5.0


class InterruptibleBatches(_WorkerBatches):
    """Torch's iterator over the batches of workers, which calls `while_waiting` twice a second.

    It keeps no reference to the loader, which refers to it: in a cycle, persistent workers would never be told to end.
    """

    while_waiting: Callable[[], None] | None = None  # may raise

    def _try_get_data(self, timeout: float = _CHECK_EVERY) -> Any:
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            found = super()._try_get_data(min(_LISTEN_EVERY, max(left, 0.0)))
            if found[0] or left <= _LISTEN_EVERY:
                return found
            if self.while_waiting is not None:
                self.while_waiting()


def end_hanging_workers(batches: Any) -> None:
    """Terminate all workers at once; torch alone would wait several seconds for each of them."""
    for worker in worker_processes(batches):
        worker.terminate()
    end_workers(batches)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM for processes started within; this process receives them afterwards."""
    if os.name != "posix":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals() -> None:
    """Unblock Ctrl-C and SIGTERM in a process started within `signals_held_back`; pending ones arrive now."""
    if os.name == "posix":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def follow_the_main_process(worker: int) -> None:
    """Prepare a worker for signals: ignore Ctrl-C, and end on SIGTERM only when the main process needs nothing more.

    Ctrl-C and preemption reach every process, while the main one still waits for a batch that it has requested. Both
    signals were blocked when this worker was started; a thread waits for SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name == "posix":
        parent, main = os.getppid(), multiprocessing.parent_process()
        if main is not None and not main.is_alive():  # killed while this one started: the parent is init by now
            os._exit(0)
        threading.Thread(target=_exit_when_told, args=(parent,), daemon=True).start()


def _exit_when_told(parent: int) -> None:
    """End this process on SIGTERM from the main one, 5 s after one from elsewhere, or when the main one is gone.

    Without this, a worker could wait forever for a reader of its output.
    """
    while os.getppid() == parent:
        if hasattr(signal, "sigtimedwait"):
            told = signal.sigtimedwait({signal.SIGTERM}, 1.0)
            told_by = None if told is None else told.si_pid
        else:  # macOS does not name the sender
            time.sleep(1.0)
            told_by = parent if signal.SIGTERM in signal.sigpending() else None
        if told_by is not None:
            time.sleep(0 if told_by == parent else _SECONDS_TO_FINISH)
            break
    os._exit(0)
