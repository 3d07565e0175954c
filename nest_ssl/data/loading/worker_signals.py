"""Loader processes that finish what the main one still waits for when Ctrl-C or preemption reaches all of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

_SECONDS_TO_FINISH = 5.0


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Processes that are started within do not get Ctrl-C and SIGTERM; this one gets them afterwards."""
    if os.name != "posix":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals() -> None:
    """Let a process that was started by `signals_held_back` get Ctrl-C and SIGTERM, also those that came meanwhile."""
    if os.name == "posix":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def follow_the_main_process(worker: int) -> None:
    """Ctrl-C and preemption reach every process, but the main one still waits for the batch that it has asked for.

    So both were held back when this worker was started; SIGTERM is waited for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name == "posix":
        parent, main = os.getppid(), multiprocessing.parent_process()
        if main is not None and not main.is_alive():  # killed while this was spawned: the parent is one that never ends
            os._exit(0)
        threading.Thread(target=_leave_when_told, args=(parent,), daemon=True).start()


def _leave_when_told(parent: int) -> None:
    """End this process when the main one says so or, a little later, when somebody else does; also when that is gone.

    By itself, a worker could wait for ever for someone to read what it has written.
    """
    while os.getppid() == parent:
        if hasattr(signal, "sigtimedwait"):
            told = signal.sigtimedwait({signal.SIGTERM}, 1.0)
            told_by = None if told is None else told.si_pid
        else:  # macOS does not say who
            time.sleep(1.0)
            told_by = parent if signal.SIGTERM in signal.sigpending() else None
        if told_by is not None:
            time.sleep(0 if told_by == parent else _SECONDS_TO_FINISH)
            break
    os._exit(0)
