"""Elastic resume: continue an epoch with another number of ranks or workers, or another batch size.

The utterances that no rank has used yet are divided among the new ranks. If they cannot be known, the new ranks resume
after the same share of the epoch. The random numbers are not those of an uninterrupted run.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from torch.utils.data import DataLoader

from nest_ssl.data.loading.epoch_order import draw_order, makes_batches
from nest_ssl.data.loading.worker_state import Stream

log = logging.getLogger(__name__)
RESTART = "restart_epoch"  # a key in the state of a rank: its data or batches changed, so its position is invalid


def fit_state(
    ranks: Sequence[Mapping[str, Any]], loader: DataLoader[Any], rank: int, world_size: int
) -> dict[str, Any]:
    """Return the state from which this rank resumes, made from the states of all ranks of the checkpoint."""
    state = {"rest": None, "batch_size": loader.batch_size, **ranks[rank % len(ranks)]}
    workers, batch_size = len(state["workers"]), state["batch_size"]
    other_processes = len(ranks) != world_size or workers != loader.num_workers
    if batch_size != loader.batch_size:
        log.warning("resuming with batch_size %s instead of %s: losses differ", loader.batch_size, batch_size)
    restarts = isinstance(loader.dataset, Stream) and other_processes
    if restarts:
        state["delivered"] = 0
    if state.get(RESTART):
        _restart_epoch(state, loader)
    elif len(ranks) != world_size or batch_size != loader.batch_size:
        state["recounted"] = True
        _divide_rest(state, ranks, loader, rank, world_size)
    if other_processes:
        rest = "with the rest of its epoch" if state["rest"] else "after the same share of its epoch"
        log.warning(
            "resuming a run of %d rank(s) with %d workers each on %d with %d: it continues %s, but with other random "
            "numbers",
            *(len(ranks), workers, world_size, loader.num_workers),
            "from the start of its epoch" if restarts or state.get(RESTART) else rest,
        )
        _forget_workers(state, loader)
    return state


def _restart_epoch(state: dict[str, Any], loader: DataLoader[Any]) -> None:
    """Move a state within an epoch to its start, without positions of workers and streams."""
    if 0 < state["delivered"] < state["batches_per_epoch"]:
        state["delivered"], state["recounted"] = 0, True
    state["rest"], state["place"] = None, None
    _forget_workers(state, loader)


def _forget_workers(state: dict[str, Any], loader: DataLoader[Any]) -> None:
    """Let all workers start as torch seeds them."""
    state["workers"], state["last_worker"] = [(0, [None])] * loader.num_workers, -1
    state["after_first_batch"] = None


def _divide_rest(
    state: dict[str, Any], ranks: Sequence[Mapping[str, Any]], loader: DataLoader[Any], rank: int, world_size: int
) -> None:
    """Make the state of an old rank that of a new one, which gets its share of the rest of the epoch.

    If the rest is unknown, the new rank resumes after the same share of the epoch, rounded down: an utterance may be
    used twice, but none is skipped.
    """
    within_epoch = 0 < state["delivered"] < state["batches_per_epoch"]
    sized = within_epoch and not isinstance(loader.dataset, Stream)
    unused = _unused(ranks, loader.sampler, len(loader.dataset)) if sized else None  # type: ignore[arg-type]
    if unused is None:
        state["delivered"] = state["delivered"] * len(ranks) // world_size
        state["batches_per_epoch"] *= len(ranks) / world_size
        return
    rest = _batches_of_rank(unused, rank, world_size, loader.batch_size, loader.drop_last)
    used = max(len(loader) - len(rest), 1)
    state["rest"] = [*([] for _ in range(used)), *rest]
    state["delivered"], state["batches_per_epoch"] = used, used + len(rest)
    _forget_workers(state, loader)


def _unused(ranks: Sequence[Mapping[str, Any]], sampler: Any, items: int) -> list[Any] | None:
    """Return the utterances (or whole batches, if the sampler makes them) that no rank has used, in their order.

    None if they cannot be known. The order of the old sampler continues: the sampler of a single rank draws another
    order than those of several ranks.
    """
    state = ranks[0]
    order = state.get("order")
    by_batches = makes_batches(sampler)
    if order is None or by_batches != (order["kind"] == "batches"):
        return None
    if state["rest"] is not None:  # the rest of an epoch that was divided before
        steps = zip_longest(*(one["rest"][one["delivered"] :] for one in ranks), fillvalue=[])
        batches = [batch for batch in chain.from_iterable(steps) if batch]
        return batches if by_batches else list(chain.from_iterable(batches))
    if by_batches:
        before = copy.copy(sampler)
        before.num_replicas = order["processes"]
        steps = before.steps(state["epoch"])[state["delivered"] :]
        return [batch.tolist() for batch in chain.from_iterable(steps)]
    taken = state["delivered"] * state["batch_size"] * len(ranks)
    return draw_order(order, state, items)[taken:]


def _batches_of_rank(
    unused: Sequence[Any], rank: int, world_size: int, batch_size: int | None, drop_last: bool
) -> list[list[int]]:
    """Return the batches of one rank; all ranks have the same number, for which some utterances may be used twice."""
    even = [*unused, *(list(unused) * world_size)[: -len(unused) % world_size]]
    own = even[rank::world_size]
    if batch_size is None:
        return own
    batches = [own[first : first + batch_size] for first in range(0, len(own), batch_size)]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]
