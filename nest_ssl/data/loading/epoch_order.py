"""The order of the batches within an epoch: drawn by torch's sampler, and drawn again when a run resumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import Any

from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from nest_ssl.data.loading.random_states import set_torch_state, torch_state


@dataclass
class EpochOrder:
    """How the order of an epoch was drawn, and which part of it a resumed run uses."""

    before: bytes = b""  # torch's state before the order was drawn
    skip: int | None = None  # batches to skip in the order that is drawn again; None: draw a new order
    over: bool = False  # use no more of the epoch
    rest: list[list[int]] | None = None  # replaces the order: batches that another number of ranks left

    def start_epoch(self) -> None:
        """Draw a new order next."""
        self.skip, self.over, self.rest = None, False, None

    def resume(self, before: bytes, skip: int, rest: list[list[int]] | None) -> None:
        """Draw the order from this state again next, without its first batches."""
        self.before, self.skip, self.over, self.rest = before, skip, False, rest


@dataclass(frozen=True)
class OrderedIndices:
    """The indices of a loader's batches, in the order of an epoch.

    Torch's iterator keeps it, so it does not refer to the loader: in a cycle of references, persistent workers would
    never be told to end, because the queue that would tell them is collected first.
    """

    indices: Any
    order: EpochOrder

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
        first = list(islice(rest, 1))  # the first index makes the sampler draw the whole order
        set_torch_state(now)
        yield from self._until_over(chain(first, rest))

    def _until_over(self, indices: Iterable[Any]) -> Iterator[Any]:
        return takewhile(lambda _: not self.order.over, indices)


def describe_order(sampler: Any) -> dict[str, Any] | None:
    """Return what is needed, besides the epoch and torch's state, to draw an order again; None if it is impossible."""
    if makes_batches(sampler):
        return {"kind": "batches", "processes": sampler.num_replicas}
    if type(sampler) is DistributedSampler:
        return {"kind": "distributed", "seed": sampler.seed, "shuffle": sampler.shuffle}
    if isinstance(sampler, RandomSampler):
        return {"kind": "random"}
    return {"kind": "sequential"} if isinstance(sampler, SequentialSampler) else None


def makes_batches(sampler: Any) -> bool:
    """Return whether a sampler yields whole batches, as `DurationBatches` does, instead of utterances."""
    return hasattr(sampler, "steps")


def draw_order(order: Mapping[str, Any], state: Mapping[str, Any], items: int) -> list[int]:
    """Draw the order of all utterances again, as the old ranks together used them."""
    everything: Any = range(items)
    if order["kind"] == "sequential":
        return list(everything)
    if order["kind"] == "distributed":
        sampler = DistributedSampler[int](everything, 1, rank=0, shuffle=order["shuffle"], seed=order["seed"])
        sampler.set_epoch(state["epoch"])
        return list(sampler)
    now = torch_state()
    set_torch_state(state["before_order"])
    try:
        return list(RandomSampler(everything))
    finally:
        set_torch_state(now)
