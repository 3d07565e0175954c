"""A DataLoader that goes on in the middle of an epoch as if it had never stopped, to the bit.

What it takes: the same order of the utterances, the place in it, and the states of all random generators, in this
process and in every worker, at that place. A worker sends its states with each batch, since only the batches that were
used count, not those that it has prepared. Lightning stores `state_dict()` in its checkpoints and calls
`load_state_dict()` before the first batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from nest_ssl.data.random_states import RandomStates, get_random_states, set_random_states, set_torch_state, torch_state

_log = logging.getLogger(__name__)


class ResumableLoader(DataLoader[Any]):
    """Its state belongs to the moment between two batches."""

    batches_per_epoch: int | None = None  # where the trainer uses fewer than there are

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.collate_fn, _WithStates):  # Lightning makes a loader anew from another's arguments
            self.collate_fn = _WithStates(self.collate_fn)
        self._delivered = 0  # batches of this epoch
        self._before_epoch = b""  # torch's state when the epoch's workers were made
        self._before_order = b""  # and when its order was drawn
        self._workers: list[deque[RandomStates | None]] = []  # of each its last two states; None: as torch seeds it
        self._resumed: dict[str, Any] | None = None  # the state to go on from, until a batch was delivered
        self._skip: int | None = None  # batches of the order that is about to be repeated

    def state_dict(self) -> dict[str, Any]:
        """Where every process of the run stands."""
        own = self._resumed or {
            "delivered": self._delivered,
            "batches_per_epoch": self.batches_per_epoch or len(self),
            "epoch": getattr(self.sampler, "epoch", None),
            "random_states": get_random_states(),
            "before_epoch": self._before_epoch,
            "before_order": self._before_order,
            "workers": [list(states) for states in self._workers],
        }
        processes: list[Any] = [own]
        if _is_distributed():
            processes = [None] * distributed.get_world_size()
            distributed.all_gather_object(processes, own)
        return {"processes": processes}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        processes = state_dict["processes"]
        rank, count = (distributed.get_rank(), distributed.get_world_size()) if _is_distributed() else (0, 1)
        state = dict(processes[rank % len(processes)])
        if len(processes) != count or len(state["workers"]) != self.num_workers:
            _log.warning(
                "resuming a run of %d process(es) with %d loader processes each by %d with %d: it goes on from the "
                "same place in the data, but not with the same random numbers",
                *(len(processes), len(state["workers"]), count, self.num_workers),
            )
            for name in ("delivered", "batches_per_epoch"):
                state[name] = state[name] * len(processes) // count
            state["workers"] = [[None]] * self.num_workers
        self._resumed = state
        if state["epoch"] is not None:
            self.sampler.set_epoch(state["epoch"])  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Lightning may ask for it more than once before it takes the first batch."""
        state = self._resumed
        starting: list[RandomStates | None] = [None] * self.num_workers
        within_epoch = state is not None and self._is_within_epoch(state)
        self._delivered, dropped, self._skip = 0, 0, None
        if self._workers and self.persistent_workers:
            starting = [states[-1] for states in self._workers]
        if state is not None:
            set_random_states(state["random_states"])
            self._end_workers()
            if within_epoch:
                # Workers take turns, so they start with a whole round; what was delivered of it is dropped again.
                round_size = max(1, self.num_workers)
                rounds, dropped = divmod(state["delivered"], round_size)
                self._delivered = self._skip = rounds * round_size
                starting = [states[0 if worker < dropped else -1] for worker, states in enumerate(state["workers"])]
                self._before_order = state["before_order"]
                set_torch_state(state["before_epoch"])  # workers that have not delivered yet are seeded as they were
            elif self.persistent_workers:
                starting = [states[-1] for states in state["workers"]]
        self._before_epoch = torch_state()
        self._workers = [deque([states], maxlen=2) for states in starting]
        batches = super().__iter__() if state is None else self._start_again(starting)
        if state is not None and not within_epoch:  # a new epoch has drawn what it needs
            state = {**state, "random_states": get_random_states()}
        return self._deliver(batches, dropped, state)

    def _start_again(self, starting: Sequence[RandomStates | None]) -> Iterator[Any]:
        """Torch's iterator, with workers that go on from these states."""
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
        for number, (batch, sender) in enumerate(batches):
            if sender is not None:
                worker, states = sender
                self._workers[worker].append(states)
            self._delivered += 1
            if number >= dropped:
                self._resumed = None
                yield batch

    def _is_within_epoch(self, state: Mapping[str, Any]) -> bool:
        within = 0 < state["delivered"] < state["batches_per_epoch"]
        if within and isinstance(self.dataset, IterableDataset):
            _log.warning("a concatenation of data sets cannot go on within an epoch; it begins this one anew")
            return False
        return within

    def _end_workers(self) -> None:
        """Those of an iteration that was never used."""
        if self._iterator is not None:
            self._iterator._shutdown_workers()  # type: ignore[attr-defined]
            self._iterator = None

    @property
    def _index_sampler(self) -> Any:  # what torch's iterators take their indices from
        return _Order(self, super()._index_sampler)

    def order(self, indices: Iterable[Any]) -> Iterator[Any]:
        """The order of an epoch, or the rest of one that was drawn earlier."""
        skip, self._skip = self._skip, None
        if skip is None:
            self._before_order = torch_state()
            yield from indices
            return
        now = torch_state()
        set_torch_state(self._before_order)
        rest = islice(iter(indices), skip, None)
        first = list(islice(rest, 1))  # by now everything is drawn
        set_torch_state(now)
        yield from chain(first, rest)


class _Order:
    """The indices of a loader's batches."""

    def __init__(self, loader: ResumableLoader, indices: Any) -> None:
        self.loader = loader
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        return self.loader.order(self.indices)


class _WithStates:
    """A collation that says which worker made a batch, and the states of its generators after it."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, items: Any) -> tuple[Any, tuple[int, RandomStates] | None]:
        batch, worker = self.collate(items), get_worker_info()
        return batch, None if worker is None else (worker.id, get_random_states())


class _StartFrom:
    """Gives each worker the states that it had."""

    def __init__(self, states: Sequence[RandomStates | None], init: Callable[[int], None] | None) -> None:
        self.states = states
        self.init = init

    def __call__(self, worker: int) -> None:
        if self.init is not None:
            self.init(worker)
        states = self.states[worker]
        if states is not None:
            set_random_states(states)


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()
