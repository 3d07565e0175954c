"""Batches of loader processes whose wait can be ended: a worker may hang on a file for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nest_ssl.compat import end_workers, worker_batches_class, worker_check_interval, worker_processes

_WorkerBatches: Any = worker_batches_class()
_CHECK_EVERY = worker_check_interval()  # seconds
_LISTEN_EVERY = 0.5  # seconds


class InterruptibleBatches(_WorkerBatches):
    """Torch's iterator, which asks now and then whether to go on waiting.

    It does not hold the loader, which holds it: workers that persist would never be told to end.
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
    """Tell all workers at once to end: torch waits for each of them for seconds before it does."""
    for worker in worker_processes(batches):
        worker.terminate()
    end_workers(batches)
