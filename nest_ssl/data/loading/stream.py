"""Datasets that decide their own order: streams, which can tell their position and start from one."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from nest_ssl.data.batch import AudioNoiseItem

Position = dict[str, Any]  # numbers, strings, bytes and lists of them: cheap to send, and no code in a checkpoint


def this_worker() -> tuple[int, int]:
    """Return the number of this worker and how many there are; (0, 1) in the main process."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


class Stream(IterableDataset[AudioNoiseItem]):
    """Utterances in an order of the dataset's own; each worker iterates over its share and has its own position.

    The loader keeps the states of the global random generators; they are not part of a position.
    """

    _start: Position | None = None  # of the next iteration

    @abstractmethod
    def position(self) -> Position:
        """Return the position of the latest iteration: after the item that it yielded last."""

    def start_from(self, position: Position) -> None:
        """Start the next iteration, and only that one, at this position."""
        self._start = position

    def start_after(self, position: Position) -> None:
        """Make the next iteration the one that follows the iteration of this position, however far that was."""

    def _take_start(self) -> Position | None:
        """Return the position at which the iteration that begins now starts; None: at the beginning."""
        position, self._start = self._start, None
        return position
