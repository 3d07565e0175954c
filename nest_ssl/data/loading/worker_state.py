"""States of workers: their random generators and, of a dataset with its own order, the position in it.

Workers send them to the main process with every batch; new workers restore them when a run resumes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from nest_ssl.data.batch import AudioNoiseItem
from nest_ssl.data.loading.random_states import RandomStates, get_random_states, set_random_states

Position = dict[str, Any]  # numbers, strings, bytes and lists of them: cheap to send, and no code in a checkpoint
# The random generators of a worker and, of a stream, its position; None: at the start, seeded by torch
WorkerState = tuple[RandomStates, Position | None] | None
_AFTER = "after"  # a key in the position of a worker that starts the next iteration of its stream: where the last ended


def this_worker() -> tuple[int, int]:
    """Return the number of this worker and how many there are; (0, 1) in the main process."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


class Stream(IterableDataset[AudioNoiseItem]):
    """Utterances in an order that the dataset decides; each worker iterates over its share and has its own position.

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


@dataclass
class WorkerProgress:
    """The state of a worker, as the main process knows it."""

    batches: int = 0  # delivered in this epoch
    states: deque[WorkerState] = field(default_factory=lambda: deque([None], maxlen=2))  # the last two


def in_next_epoch(states: Sequence[WorkerState]) -> WorkerProgress:
    """Return a persistent worker at the start of an epoch: its generators continue, its stream starts an iteration."""
    last = states[-1]
    if last is not None and last[1] is not None and _AFTER not in last[1]:
        last = (last[0], {_AFTER: last[1]})
    return WorkerProgress(0, deque([last], maxlen=2))


def within_epoch(workers: Sequence[tuple[int, Sequence[WorkerState]]], last: int) -> tuple[list[WorkerProgress], int]:
    """Return the workers as they resume within an epoch, and how many delivered batches they load again.

    Workers take turns, beginning with the first. In a round that is not complete, those that had their turn load their
    last batch again. (The stream of a worker may have ended rounds ago; such a worker loads nothing again.)
    """
    rounds = max((batches for batches, _ in workers), default=0)
    again = [number <= last < len(workers) - 1 and batches == rounds for number, (batches, _) in enumerate(workers)]
    resumed = [
        WorkerProgress(batches - repeats, deque([states[0 if repeats else -1]], maxlen=2))
        for (batches, states), repeats in zip(workers, again, strict=True)
    ]
    return resumed, sum(again)


@dataclass(frozen=True)
class CollateWithState:
    """Collate a batch and add which worker made it, and that worker's state afterwards."""

    collate: Callable[[Any], Any]

    def __call__(self, items: Any) -> tuple[Any, tuple[int, WorkerState] | None]:
        batch, worker = self.collate(items), get_worker_info()
        if worker is None:
            return batch, None
        position = worker.dataset.position() if isinstance(worker.dataset, Stream) else None
        return batch, (worker.id, (get_random_states(), position))


@dataclass(frozen=True)
class RestoreWorker:
    """A `worker_init_fn` that restores the state of each worker."""

    states: Sequence[WorkerState]
    init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        if self.init is not None:
            self.init(worker)
        state = self.states[worker]
        if state is None:
            return
        random_states, position = state
        set_random_states(random_states)
        info = get_worker_info()
        if position is None or info is None or not isinstance(info.dataset, Stream):
            return
        if _AFTER in position:
            info.dataset.start_after(position[_AFTER])
        else:
            info.dataset.start_from(position)
