"""States of workers: sent to the main process with every batch, and restored in new workers after a resume."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import get_worker_info

from nest_ssl.data.loading.random_states import RandomStates, get_random_states, set_random_states
from nest_ssl.data.loading.stream import Position, Stream

# The random generators of a worker and, of a stream, its position; None: at the start, seeded by torch
WorkerState = tuple[RandomStates, Position | None] | None
_AFTER = "after"  # a key in the position of a worker that starts the next iteration of its stream: where the last ended


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


class CollateWithState:
    """Collate a batch and add which worker made it, and that worker's state afterwards."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, items: Any) -> tuple[Any, tuple[int, WorkerState] | None]:
        batch, worker = self.collate(items), get_worker_info()
        if worker is None:
            return batch, None
        position = worker.dataset.position() if isinstance(worker.dataset, Stream) else None
        return batch, (worker.id, (get_random_states(), position))


class RestoreWorker:
    """A `worker_init_fn` that restores the state of each worker."""

    def __init__(self, states: Sequence[WorkerState], init: Callable[[int], None] | None) -> None:
        self.states = states
        self.init = init

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
