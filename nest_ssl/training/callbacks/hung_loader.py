"""Leave after a signal although the data hangs: a read that never returns keeps Python's signal handlers from running.

A thread hears of signals through a socket that the interpreter writes to at once. If training still waits for the same
batch some time later, it ends the process without saving: in the middle of a batch, random numbers are half drawn.
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

_log = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds that one batch may take after a signal
_LOOK_EVERY = 0.5  # seconds


class HungLoaderWatch:
    """Ends the process when a signal came and the same wait for data goes on for `PATIENCE` seconds.

    `waits_since` tells when the present wait began (`time.monotonic()`), or None while a step is computed or saved.
    Create and close it in the main thread.
    """

    def __init__(self, waits_since: Callable[[], float | None]) -> None:
        self._waits_since = waits_since
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="hung loader watch", daemon=True)
        self._thread.start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_the_parent)

    def close(self) -> None:
        signal.set_wakeup_fd(self._previous)
        self._writer.shutdown(socket.SHUT_WR)  # heard by the thread also while forked workers hold copies
        self._thread.join()
        self._writer.close()
        self._reader.close()

    def _leave_to_the_parent(self) -> None:
        """In a forked worker: the signals that it gets are not the run's."""
        if self._writer.fileno() >= 0:
            signal.set_wakeup_fd(-1)

    def _listen(self) -> None:
        told: tuple[int, float] | None = None  # the first signal to stop, and when it came
        while True:
            self._reader.settimeout(None if told is None else _LOOK_EVERY)
            try:
                received = self._reader.recv(1)
            except TimeoutError:
                received = None
            if received == b"":
                return
            if told is None and received is not None and received[0] in (signal.SIGINT, signal.SIGTERM):
                told = received[0], time.monotonic()
            if told is not None and self._hangs(told[1]):
                _log.error(
                    "%s: the data has not come for %d s, so this process leaves without saving; the same command "
                    "continues from the last checkpoint",
                    *(signal.Signals(told[0]).name, PATIENCE),
                )
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(128 + told[0])  # the main thread cannot be asked to

    def _hangs(self, told_at: float) -> bool:
        since = self._waits_since()
        return since is not None and time.monotonic() - max(since, told_at) > PATIENCE
