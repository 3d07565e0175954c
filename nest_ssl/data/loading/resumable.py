"""A DataLoader that resumes in the middle of an epoch, to the bit.

It restores the order of the utterances, the position in it, and the states of all random generators at that position,
in this process and in every worker. Workers prepare batches in advance, and only batches that the training has used
count; so a worker sends its state with each batch. Lightning stores `state_dict()` in its checkpoints and calls
`load_state_dict()` before the first batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

from nest_ssl.compat import end_workers
from nest_ssl.data.loading.epoch_order import EpochOrder, OrderedIndices, describe_order
from nest_ssl.data.loading.random_states import get_random_states, set_random_states, set_torch_state, torch_state
from nest_ssl.data.loading.worker_state import (
    CollateWithState,
    RestoreWorker,
    Stream,
    WorkerProgress,
    in_next_epoch,
    within_epoch,
)
from nest_ssl.data.loading.workers import (
    InterruptibleBatches,
    end_hanging_workers,
    follow_the_main_process,
    signals_held_back,
)
from nest_ssl.errors import NestError


class ResumableLoader(DataLoader[Any]):
    """A DataLoader whose state belongs to the moment between two batches.

    If a loader has no length, Lightning requests one batch more than it trains on, to know which one is the last. A
    resumed run loads that batch again.
    """

    has_length = True  # else only the loader itself finds out when an epoch ends
    endless = False  # only the trainer ends an epoch
    batches_per_epoch: int | None = None  # if the trainer uses fewer than there are
    between_batches: Callable[[], None] | None = None  # called when no batch is in progress; may raise
    while_waiting: Callable[[], None] | None = None  # called while a worker is slow or hangs; may raise SystemExit
    waits_since: float | None = None  # when the current wait for a batch, or for other ranks, began

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.collate_fn, CollateWithState):  # Lightning makes a loader from another one's arguments
            self.collate_fn = CollateWithState(self.collate_fn)
        self.worker_init_fn = self.worker_init_fn or follow_the_main_process
        self._delivered = 0  # batches of this epoch
        self._before_epoch = b""  # torch's state when the workers of this epoch were made
        self._order = EpochOrder()
        self._workers: list[WorkerProgress] = []
        self._last_worker = -1  # the worker that delivered the last batch
        self._resumed: dict[str, Any] | None = None  # the state to resume from, until a batch was delivered
        self._before_last: dict[str, Any] | None = None  # the state before the last batch, for a loader without length

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Start an epoch, or resume in one. Lightning may call this more than once before it requests a batch."""
        self._finish_epoch()
        if self.between_batches is not None:  # no random number of the epoch is drawn yet
            self.between_batches()
        self._delivered, self._last_worker, self._before_last = 0, -1, None
        self._order.start_epoch()
        if self._resumed is not None:
            return self._resume(self._resumed)
        persist = self.persistent_workers and bool(self._workers)
        self._workers = [
            in_next_epoch(self._workers[worker].states) if persist else WorkerProgress()
            for worker in range(self.num_workers)
        ]
        self._before_epoch = torch_state()
        with signals_held_back():
            batches = super().__iter__()
        return self._deliver(batches, 0, None)

    def _deliver(self, batches: Iterator[Any], repeated: int, resumed: Mapping[str, Any] | None) -> Iterator[Any]:
        """Yield the batches after the `repeated` ones, and count them."""
        if resumed is not None:
            set_random_states(resumed["random_states"])
        for number, (batch, sender) in enumerate(self._interruptible(batches)):
            if sender is not None:
                self._last_worker, worker_state = sender
                worker = self._workers[self._last_worker]
                worker.batches += 1
                worker.states.append(worker_state)
            self._delivered += 1
            if number >= repeated:
                if number == repeated and resumed is not None and resumed["after_first_batch"] is not None:
                    set_random_states(resumed["after_first_batch"])
                if not self._is_read_ahead:
                    self._resumed = None
                yield batch
                self._resumed = None  # requesting another batch means that this one was used
        self._delivered, self._before_last = 0, None  # the epoch is complete

    def _interruptible(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; call `between_batches` before each and `while_waiting` during a wait for workers."""
        while True:
            self.waits_since = time.monotonic()
            if self._delivered and self.between_batches is not None:  # `__iter__` called it before the first batch
                try:
                    self.between_batches()
                except BaseException:
                    self.waits_since = None
                    end_workers(batches)
                    raise
            before_last = self._before_last
            if self._length() == math.inf:
                self._before_last = self._state()
            listens = self._delivered and isinstance(batches, InterruptibleBatches)
            if listens:
                batches.while_waiting = self.while_waiting  # type: ignore[attr-defined]
            try:
                batch = next(batches)
            except StopIteration:
                return
            except SystemExit:  # raised while waiting: the state is that before this batch was requested
                self._before_last = before_last
                end_hanging_workers(batches)
                raise
            finally:
                self.waits_since = None
                if listens:
                    batches.while_waiting = None  # type: ignore[attr-defined]
            yield batch

    def _finish_epoch(self) -> None:
        """Take unused batches of persistent workers, whose random generators have advanced with them."""
        if not self.persistent_workers or self._iterator is None:
            return
        self._order.over = True
        while True:
            try:
                _, (number, worker_state) = next(self._iterator)
            except StopIteration:
                return
            except NestError:  # an error in audio of an unused batch
                continue
            self._workers[number].states.append(worker_state)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks."""
        own = self._resumed
        if own is None and self._before_last is not None:
            own = {**self._before_last, "after_first_batch": get_random_states()}
        own = own or self._state()
        ranks: list[Any] = [own]
        if _is_distributed():
            ranks = [None] * distributed.get_world_size()
            distributed.all_gather_object(ranks, own)
        return {"processes": ranks}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from this state at the next iteration, also with another number of ranks or workers."""
        from nest_ssl.data.loading.elastic_resume import fit_state

        self._resumed = state = fit_state(state_dict["processes"], self, *_rank_and_world_size())
        if state["epoch"] is not None and hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(state["epoch"])

    @property
    def resumed_at(self) -> int | None:
        """The position in the epoch, in batches of this rank, if the checkpoint counted otherwise; else None."""
        state = self._resumed
        if state is None or not state.get("recounted") or state["delivered"] >= state["batches_per_epoch"]:
            return None
        return int(state["delivered"])

    def _state(self) -> dict[str, Any]:
        """Return the state of this rank."""
        if self._delivered >= self._length():
            self._finish_epoch()
        return {
            "delivered": self._delivered,
            "batches_per_epoch": self._length(),
            "epoch": getattr(self.sampler, "epoch", None),
            "random_states": get_random_states(),
            "after_first_batch": None,
            "place": self.dataset.position() if isinstance(self.dataset, Stream) and not self._workers else None,
            "before_epoch": self._before_epoch,
            "before_order": self._order.before,
            "order": describe_order(self.sampler),
            "rest": self._order.rest,
            "batch_size": self.batch_size,
            "workers": [(worker.batches, list(worker.states)) for worker in self._workers],
            "last_worker": self._last_worker,
        }

    def _resume(self, state: Mapping[str, Any]) -> Iterator[Any]:
        """Continue the epoch of a state, or start the epoch after it."""
        set_random_states(state["random_states"])
        end_workers(self._iterator)  # of an iteration that was never used
        self._iterator = None
        is_within_epoch, repeated = 0 < state["delivered"] < state["batches_per_epoch"], 0
        workers = [WorkerProgress() for _ in range(self.num_workers)]
        if is_within_epoch:
            workers, repeated = within_epoch(state["workers"], state["last_worker"])
            self._delivered = state["delivered"] - repeated
            self._order.resume(state["before_order"], self._delivered, state["rest"])
            set_torch_state(state["before_epoch"])  # it seeds the workers that have delivered nothing yet
            if state["place"] is not None:
                self.dataset.start_from(state["place"])  # type: ignore[attr-defined]
        else:
            if state["place"] is not None:
                self.dataset.start_after(state["place"])  # type: ignore[attr-defined]
            if self.persistent_workers:
                workers = [in_next_epoch(worker_states) for _, worker_states in state["workers"]]
        self._before_epoch = torch_state()
        self._workers = workers
        with signals_held_back():
            batches = self._restored_batches()
        if not is_within_epoch:  # starting an epoch has drawn random numbers
            state = {**state, "random_states": get_random_states()}
        return self._deliver(batches, repeated, state)

    def _restored_batches(self) -> Iterator[Any]:
        """Return torch's iterator, with workers that start in their restored states."""
        states = [worker.states[-1] for worker in self._workers]
        init, generator = self.worker_init_fn, self.generator
        self.worker_init_fn = RestoreWorker(states, init)
        if states and all(states):  # persistent workers of an uninterrupted run would not have drawn a seed
            self.generator = torch.Generator()
        try:
            return super().__iter__()
        finally:
            self.worker_init_fn, self.generator = init, generator

    def _length(self) -> float:
        """Return the batches of an epoch, as the trainer counts them; infinity if unknown."""
        try:
            return self.batches_per_epoch or len(self)
        except TypeError:
            return math.inf

    @property
    def _is_read_ahead(self) -> bool:
        """Whether Lightning requests a batch before it needs one, perhaps only to start the next epoch without it."""
        return self.batches_per_epoch is None and self._length() == math.inf

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return InterruptibleBatches(self)

    @property
    def _index_sampler(self) -> Any:  # torch's iterators take their indices from it
        return OrderedIndices(super()._index_sampler, self._order)


def _rank_and_world_size() -> tuple[int, int]:
    return (distributed.get_rank(), distributed.get_world_size()) if _is_distributed() else (0, 1)


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()
