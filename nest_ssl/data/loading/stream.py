"""Data that comes in an order of its own: a stream that can say where it stands, and go on from there."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from nest_ssl.data.batch import AudioNoiseItem

Place = dict[str, Any]  # numbers, strings, bytes and lists of them: sent with every batch, and no code in a checkpoint


def this_worker() -> tuple[int, int]:
    """The number of this loader process, and how many there are; the training process is alone."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


class Stream(IterableDataset[AudioNoiseItem]):
    """Utterances in an order of its own; each worker process iterates over its share and has a place of its own.

    The states of the global random generators are kept by the loader and are not part of a place.
    """

    _start: Place | None = None  # of the next iteration

    @abstractmethod
    def place(self) -> Place:
        """Where the latest iteration stands: after the item that it gave last."""

    def start_from(self, place: Place) -> None:
        """Make the next iteration, and only that, go on from there."""
        self._start = place

    def _take_start(self) -> Place | None:
        """Where the iteration that begins now is to go on from; None: at the beginning."""
        place, self._start = self._start, None
        return place

    def start_after(self, place: Place) -> None:
        """Make the next iteration the one that would have followed the one which stood there, however far it was."""
