"""What is left of an epoch that other processes have begun, and how those who resume it share it out."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from nest_ssl.data.loading.buckets import DurationBatches
from nest_ssl.data.loading.random_states import set_torch_state, torch_state

Batches = list[list[int]]  # of one process


def how_ordered(sampler: Any) -> dict[str, Any] | None:
    """What it takes, beside the epoch and torch's state, to draw an order once more; None if nothing will do."""
    if isinstance(sampler, DurationBatches):
        return {"kind": "batches", "processes": sampler.num_replicas}
    if type(sampler) is DistributedSampler:
        return {"kind": "distributed", "seed": sampler.seed, "shuffle": sampler.shuffle}
    if isinstance(sampler, RandomSampler):
        return {"kind": "random"}
    return {"kind": "sequential"} if isinstance(sampler, SequentialSampler) else None


def left_of_epoch(processes: Sequence[Mapping[str, Any]], sampler: Any, items: int) -> list[Any] | None:
    """Utterances that none of the processes had, in their order; whole batches, if the sampler makes them itself.

    None if that cannot be known. The sampler of one process draws another order than those of several, so it is the
    old one that goes on.
    """
    state = processes[0]
    order = state.get("order")
    by_batches = isinstance(sampler, DurationBatches)
    if order is None or by_batches != (order["kind"] == "batches"):
        return None
    if state["rest"] is not None:  # which was shared out before
        steps = zip_longest(*(process["rest"][process["delivered"] :] for process in processes), fillvalue=[])
        batches = [batch for batch in chain.from_iterable(steps) if batch]
        return batches if by_batches else list(chain.from_iterable(batches))
    if by_batches:
        before = copy.copy(sampler)
        before.num_replicas = order["processes"]
        steps = before.steps(state["epoch"])[state["delivered"] :]
        return [batch.tolist() for batch in chain.from_iterable(steps)]
    taken = state["delivered"] * state["batch_size"] * len(processes)
    return _order(order, state, items)[taken:]


def shared_out(left: Sequence[Any], rank: int, processes: int, batch_size: int | None, drop_last: bool) -> Batches:
    """The batches of one process: all have as many, for which an utterance or two may come twice."""
    even = [*left, *(list(left) * processes)[: -len(left) % processes]]
    own = even[rank::processes]
    if batch_size is None:
        return own
    batches = [own[first : first + batch_size] for first in range(0, len(own), batch_size)]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]


def _order(order: Mapping[str, Any], state: Mapping[str, Any], items: int) -> list[int]:
    """Of all utterances, as the processes together took them."""
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
