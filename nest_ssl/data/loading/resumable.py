"""A DataLoader that goes on in the middle of an epoch as if it had never stopped, to the bit.

What it takes: the same order of the utterances, the place in it, and the states of all random generators, in this
process and in every worker, at that place. A worker sends where it stands with each batch, since only the batches that
were used count, not those that it has prepared. Lightning stores `state_dict()` in its checkpoints and calls
`load_state_dict()` before the first batch.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, get_worker_info

from nest_ssl.compat import end_workers
from nest_ssl.data.loading.random_states import (
    RandomStates,
    get_random_states,
    set_random_states,
    set_torch_state,
    torch_state,
)
from nest_ssl.data.loading.rest_of_epoch import Batches, how_ordered, left_of_epoch, shared_out
from nest_ssl.data.loading.stream import Place, Stream
from nest_ssl.data.loading.waiting import InterruptibleBatches, end_hanging_workers
from nest_ssl.data.loading.worker_signals import follow_the_main_process, signals_held_back
from nest_ssl.errors import NestError

_log = logging.getLogger(__name__)
# where a worker stands: its generators and, in a stream, its place; None: at the beginning, as torch seeds it
WorkerState = tuple[RandomStates, Place | None] | None
RESTART = "restart_epoch"  # in the state of a process: other data, or batches made in another way, so no place is valid
_AFTER = "after"  # in the place of one who begins a stream anew: where it stood in the one before


@dataclass
class _Worker:
    """What is known of a loader process."""

    batches: int = 0  # delivered in this epoch
    worker_states: deque[WorkerState] = field(default_factory=lambda: deque([None], maxlen=2))  # the last two


class ResumableLoader(DataLoader[Any]):
    """Its state belongs to the moment between two batches.

    A loader that has no length is asked by Lightning for one batch more than it trains on, to know the last one. That
    batch is made once more after resuming.
    """

    batches_per_epoch: int | None = None  # where the trainer uses fewer than there are
    between_batches: Callable[[], None] | None = None  # may raise: this is the moment at which nothing is half done
    while_waiting: Callable[[], None] | None = None  # the same for a worker that hangs; may raise a SystemExit
    waits_since: float | None = None  # when the present wait for a batch, or for other ranks, began

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.collate_fn, _WithStanding):  # Lightning makes a loader anew from another's arguments
            self.collate_fn = _WithStanding(self.collate_fn)
        self.worker_init_fn = self.worker_init_fn or follow_the_main_process
        self._delivered = 0  # batches of this epoch
        self._before_epoch = b""  # torch's state when the epoch's workers were made
        self._order = _Order()
        self._workers: list[_Worker] = []
        self._last_worker = -1  # that delivered
        self._resumed: dict[str, Any] | None = None  # the state to go on from, until a batch was delivered
        self._before_last: dict[str, Any] | None = None  # the state before the last batch, if that is one more

    def state_dict(self) -> dict[str, Any]:
        """Where every process of the run stands."""
        own = self._resumed
        if own is None and self._before_last is not None:
            own = {**self._before_last, "after_first_batch": get_random_states()}
        own = own or self._state()
        processes: list[Any] = [own]
        if _is_distributed():
            processes = [None] * distributed.get_world_size()
            distributed.all_gather_object(processes, own)
        return {"processes": processes}

    def _state(self) -> dict[str, Any]:
        if self._delivered >= self._length():
            self._finish_epoch()
        return {
            "delivered": self._delivered,
            "batches_per_epoch": self._length(),
            "epoch": getattr(self.sampler, "epoch", None),
            "random_states": get_random_states(),
            "after_first_batch": None,
            "place": self.dataset.place() if isinstance(self.dataset, Stream) and not self._workers else None,
            "before_epoch": self._before_epoch,
            "before_order": self._order.before,
            "order": how_ordered(self.sampler),
            "rest": self._order.rest,
            "batch_size": self.batch_size,
            "workers": [(worker.batches, list(worker.worker_states)) for worker in self._workers],
            "last_worker": self._last_worker,
        }

    def _length(self) -> float:
        """Batches of an epoch, as the trainer counts them; infinite where nobody knows."""
        try:
            return self.batches_per_epoch or len(self)
        except TypeError:
            return math.inf

    @property
    def _is_read_ahead(self) -> bool:
        """Whether Lightning takes a batch before it needs one, perhaps only to begin the next epoch without it."""
        return self.batches_per_epoch is None and self._length() == math.inf

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        processes = state_dict["processes"]
        rank, count = _this_process()
        state = {"rest": None, "batch_size": self.batch_size, **processes[rank % len(processes)]}
        workers, batch_size = len(state["workers"]), state["batch_size"]
        if batch_size != self.batch_size:
            _log.warning("resuming a run with batch_size %s by %s: losses differ", batch_size, self.batch_size)
        anew = isinstance(self.dataset, Stream) and (len(processes) != count or workers != self.num_workers)
        if anew:
            state["delivered"] = 0
        if state.get(RESTART):
            self._restart_epoch(state)
        elif len(processes) != count or batch_size != self.batch_size:
            state["recounted"] = True
            self._share_out(state, processes, rank, count)
        if len(processes) != count or workers != self.num_workers:
            left = "with what is left of its epoch" if state["rest"] else "after the same share of its epoch"
            _log.warning(
                "resuming a run of %d process(es) with %d loader processes each by %d with %d: it goes on %s, but with "
                "other random numbers",
                *(len(processes), workers, count, self.num_workers),
                "from the beginning of its epoch" if anew or state.get(RESTART) else left,
            )
            state["workers"], state["last_worker"] = [(0, [None])] * self.num_workers, -1
            state["after_first_batch"] = None
        self._resumed = state
        if state["epoch"] is not None and hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(state["epoch"])

    def _restart_epoch(self, state: dict[str, Any]) -> None:
        """Turn a state within an epoch into one at its beginning, and forget where workers and streams stood."""
        if 0 < state["delivered"] < state["batches_per_epoch"]:
            state["delivered"], state["recounted"] = 0, True
        state["rest"], state["place"], state["after_first_batch"] = None, None, None
        state["workers"], state["last_worker"] = [(0, [None])] * self.num_workers, -1

    def _share_out(self, state: dict[str, Any], processes: Sequence[Mapping[str, Any]], rank: int, count: int) -> None:
        """Turn the state of one process of others into one of this: what is left of the epoch, each utterance once.

        Where that is not known, after the same share, rounded down: an utterance may come twice, none never.
        """
        within_epoch = 0 < state["delivered"] < state["batches_per_epoch"]
        sized = within_epoch and not isinstance(self.dataset, Stream)
        left = left_of_epoch(processes, self.sampler, len(self.dataset)) if sized else None  # type: ignore[arg-type]
        if left is None:
            state["delivered"] = state["delivered"] * len(processes) // count
            state["batches_per_epoch"] *= len(processes) / count
            return
        rest = shared_out(left, rank, count, self.batch_size, self.drop_last)
        behind = max(len(self) - len(rest), 1)
        state["rest"] = [*([] for _ in range(behind)), *rest]
        state["delivered"], state["batches_per_epoch"] = behind, behind + len(rest)
        state["workers"], state["last_worker"] = [(0, [None])] * self.num_workers, -1
        state["after_first_batch"] = None

    @property
    def behind(self) -> int | None:
        """Batches of the epoch that lie behind a run of other processes, as these count them; None if they agree."""
        state = self._resumed
        if state is None or not state.get("recounted") or state["delivered"] >= state["batches_per_epoch"]:
            return None
        return int(state["delivered"])

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Lightning may ask for it more than once before it takes the first batch."""
        self._finish_epoch()
        if self.between_batches is not None:  # nothing of the epoch is drawn yet
            self.between_batches()
        state = self._resumed
        within_epoch = state is not None and 0 < state["delivered"] < state["batches_per_epoch"]
        self._delivered, dropped, self._last_worker, self._before_last = 0, 0, -1, None
        self._order.skip, self._order.over, self._order.rest = None, False, None
        persistent = [_Worker() for _ in range(self.num_workers)]
        if self._workers and self.persistent_workers:
            persistent = [_new_epoch(worker.worker_states) for worker in self._workers]
        if state is not None:
            set_random_states(state["random_states"])
            end_workers(self._iterator)  # of an iteration that was never used
            self._iterator = None
            if within_epoch:
                persistent, dropped = _same_epoch(state["workers"], state["last_worker"])
                self._delivered = self._order.skip = state["delivered"] - dropped
                self._order.before, self._order.rest = state["before_order"], state["rest"]
                set_torch_state(state["before_epoch"])  # workers that have not delivered yet are seeded as they were
                if state["place"] is not None:
                    self.dataset.start_from(state["place"])  # type: ignore[attr-defined]
            else:
                if state["place"] is not None:
                    self.dataset.start_after(state["place"])  # type: ignore[attr-defined]
                if self.persistent_workers:
                    persistent = [_new_epoch(worker_states) for _, worker_states in state["workers"]]
        self._before_epoch = torch_state()
        self._workers = persistent
        with signals_held_back():
            batches = (
                super().__iter__() if state is None else self._start_again([w.worker_states[-1] for w in persistent])
            )
        if state is not None and not within_epoch:  # a new epoch has drawn what it needs
            state = {**state, "random_states": get_random_states()}
        return self._deliver(batches, dropped, state)

    def _finish_epoch(self) -> None:
        """Take what workers that live on have prepared and nobody wants: their generators have moved on with it."""
        if not self.persistent_workers or self._iterator is None:
            return
        self._order.over = True
        while True:
            try:
                _, (number, worker_state) = next(self._iterator)
            except StopIteration:
                return
            except NestError:  # of audio that nobody wants either
                continue
            self._workers[number].worker_states.append(worker_state)

    def _start_again(self, starting: Sequence[WorkerState]) -> Iterator[Any]:
        """Torch's iterator, with workers that go on from there."""
        init, generator = self.worker_init_fn, self.generator
        self.worker_init_fn = _StartFrom(starting, init)
        if starting and all(starting):  # workers that had lived on would not have drawn a seed
            self.generator = torch.Generator()
        try:
            return super().__iter__()
        finally:
            self.worker_init_fn, self.generator = init, generator

    def _deliver(self, batches: Iterator[Any], dropped: int, state: Mapping[str, Any] | None) -> Iterator[Any]:
        if state is not None:
            set_random_states(state["random_states"])
        for number, (batch, sender) in enumerate(self._interruptible(batches)):
            if sender is not None:
                self._last_worker, worker_state = sender
                worker = self._workers[self._last_worker]
                worker.batches += 1
                worker.worker_states.append(worker_state)
            self._delivered += 1
            if number >= dropped:
                if number == dropped and state is not None and state["after_first_batch"] is not None:
                    set_random_states(state["after_first_batch"])
                if not self._is_read_ahead:
                    self._resumed = None
                yield batch
                self._resumed = None  # who asks for another one uses the first
        self._delivered, self._before_last = 0, None  # what comes is another epoch

    def _interruptible(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            self.waits_since = time.monotonic()
            if self._delivered and self.between_batches is not None:  # before the first, an epoch is half begun
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
            except SystemExit:  # raised while waiting: as if this batch had never been asked for
                self._before_last = before_last
                end_hanging_workers(batches)
                raise
            finally:
                self.waits_since = None
                if listens:
                    batches.while_waiting = None  # type: ignore[attr-defined]
            yield batch

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return InterruptibleBatches(self)

    @property
    def _index_sampler(self) -> Any:  # what torch's iterators take their indices from
        return _Indices(super()._index_sampler, self._order)


def _new_epoch(worker_states: Sequence[WorkerState]) -> _Worker:
    """A worker that lives on: its generators do; it begins a stream anew, after the one in which it stood."""
    last = worker_states[-1]
    if last is not None and last[1] is not None and _AFTER not in last[1]:
        last = (last[0], {_AFTER: last[1]})
    return _Worker(0, deque([last], maxlen=2))


def _same_epoch(workers: Sequence[tuple[int, Sequence[WorkerState]]], last: int) -> tuple[list[_Worker], int]:
    """Workers as they go on in the middle of an epoch, and how many of their batches have been delivered before.

    They take turns, the first one first, so those that have had their turn in a round that is not over yet make their
    last batch once more. (A stream may have ended for some of them rounds ago; those do not.)
    """
    rounds = max((batches for batches, _ in workers), default=0)
    again = [number <= last < len(workers) - 1 and batches == rounds for number, (batches, _) in enumerate(workers)]
    pairs = zip(workers, again, strict=True)
    return [_Worker(n - repeats, deque([s[0 if repeats else -1]], maxlen=2)) for (n, s), repeats in pairs], sum(again)


@dataclass
class _Order:
    """How the order of an epoch was drawn, and how much of it is to be repeated."""

    before: bytes = b""  # torch's state
    skip: int | None = None  # batches; None: it is a new one
    over: bool = False  # whatever is left of it
    rest: Batches | None = None  # in its place: what other processes left of it, after as many as lie behind


class _Indices:
    """The indices of a loader's batches: those of an epoch, or the rest of one that was drawn earlier.

    Torch's iterator holds it, so it does not hold the loader: workers that live on in a circle of references are never
    told to end, because the queue that would tell them goes first.
    """

    def __init__(self, indices: Any, order: _Order) -> None:
        self.indices = indices
        self.order = order

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        skip, self.order.skip = self.order.skip, None
        if skip is None:
            self.order.before = torch_state()
            yield from self._until_over(self.indices)
            return
        now = torch_state()
        set_torch_state(self.order.before)
        rest = islice(iter(self.indices if self.order.rest is None else self.order.rest), skip, None)
        first = list(islice(rest, 1))  # by now everything is drawn
        set_torch_state(now)
        yield from self._until_over(chain(first, rest))

    def _until_over(self, indices: Iterable[Any]) -> Iterator[Any]:
        return takewhile(lambda _: not self.order.over, indices)


class _WithStanding:
    """A collation that says which worker made a batch, and where that stands after it."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, items: Any) -> tuple[Any, tuple[int, WorkerState] | None]:
        batch, worker = self.collate(items), get_worker_info()
        if worker is None:
            return batch, None
        place = worker.dataset.place() if isinstance(worker.dataset, Stream) else None
        return batch, (worker.id, (get_random_states(), place))


class _StartFrom:
    """Puts each worker where it stood."""

    def __init__(self, worker_states: Sequence[WorkerState], init: Callable[[int], None] | None) -> None:
        self.worker_states = worker_states
        self.init = init

    def __call__(self, worker: int) -> None:
        if self.init is not None:
            self.init(worker)
        worker_state = self.worker_states[worker]
        if worker_state is None:
            return
        states, place = worker_state
        set_random_states(states)
        info = get_worker_info()
        if place is None or info is None or not isinstance(info.dataset, Stream):
            return
        if _AFTER in place:
            info.dataset.start_after(place[_AFTER])
        else:
            info.dataset.start_from(place)


def _this_process() -> tuple[int, int]:
    """Its rank, and how many there are."""
    return (distributed.get_rank(), distributed.get_world_size()) if _is_distributed() else (0, 1)


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()
