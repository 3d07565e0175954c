from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.data.loading.buckets import DurationBatches, split_by_duration

DURATIONS = st.lists(st.floats(0.1, 20.0), min_size=1, max_size=60)
OPTIONS = st.fixed_dictionaries(
    {
        "batch_duration": st.floats(20.0, 200.0),
        "num_buckets": st.integers(1, 40),
        "bucket_duration_bins": st.none() | st.lists(st.floats(0.1, 20.0), max_size=5, unique=True).map(sorted),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**64 - 1),
    }
)


def ranks_of(durations: Sequence[float], world_size: int, epoch: int, **options: Any) -> list[list[list[int]]]:
    samplers = [DurationBatches(durations, rank=rank, num_replicas=world_size, **options) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    assert [len(list(sampler)) for sampler in samplers] == [len(sampler) for sampler in samplers]
    return [list(sampler) for sampler in samplers]


@given(durations=DURATIONS, options=OPTIONS, world_size=st.integers(1, 5), epoch=st.integers(0, 3))
def test_every_utterance_occurs_once_and_ranks_have_equally_many_batches(
    durations: list[float], options: dict[str, Any], world_size: int, epoch: int
) -> None:
    ranks = ranks_of(durations, world_size, epoch, **options)
    assert len({len(batches) for batches in ranks}) == 1
    seen = [index for batches in ranks for batch in batches for index in batch]
    assert set(seen) == set(range(len(durations)))
    if len(seen) > len(durations):  # only if no batch could be split to give every rank one
        assert all(len(batch) == 1 for batches in ranks for batch in batches)
        assert len(seen) - len(durations) < world_size


@given(durations=DURATIONS, options=OPTIONS, quadratic=st.none() | st.floats(15.0, 100.0))
def test_no_batch_is_above_the_limit(durations: list[float], options: dict[str, Any], quadratic: float | None) -> None:
    cost = [d if quadratic is None else d + d**2 / quadratic for d in durations]
    options["batch_duration"] += max(cost)
    (batches,) = ranks_of(durations, 1, 0, quadratic_duration=quadratic, **options)
    assert all(len(batch) * max(cost[index] for index in batch) <= options["batch_duration"] for batch in batches)


@given(durations=DURATIONS, options=OPTIONS)
def test_only_the_seed_and_the_epoch_decide_the_order(durations: list[float], options: dict[str, Any]) -> None:
    first = ranks_of(durations, 2, 3, **options)
    np.random.rand()  # noqa: NPY002 - the run's own draws play no part
    torch.rand(1)
    assert ranks_of(durations, 2, 3, **options) == first
    if not options["shuffle"]:
        assert ranks_of(durations, 2, 3, **options) == ranks_of(durations, 2, 4, **options)


def test_epochs_and_seeds_differ_in_the_order_and_content_of_batches() -> None:
    durations = np.random.default_rng(0).uniform(1, 10, 300)
    orders = [
        ranks_of(durations, 1, epoch, batch_duration=40, seed=seed)[0] for epoch, seed in ((0, 0), (1, 0), (0, 1))
    ]
    companies = [{frozenset(batch) for batch in order} for order in orders]
    for one in range(3):
        for other in range(one):
            assert len(companies[one] & companies[other]) < len(orders[one]) / 2


def test_batches_are_full_and_of_similar_length() -> None:
    durations = np.random.default_rng(0).lognormal(1.0, 0.8, 5000).clip(0.5, 20)
    sampler = DurationBatches(durations, batch_duration=160)
    assert sampler.padding_efficiency() > 0.9
    assert len(sampler) < 1.2 * durations.sum() / 160


def test_a_small_set_has_fewer_batches_than_buckets() -> None:
    assert len(DurationBatches(np.linspace(1, 5, 30), batch_duration=100, num_buckets=30)) == 2


def test_ranks_have_batches_of_similar_length_at_the_same_time() -> None:
    durations = np.random.default_rng(0).uniform(1, 20, 2000)
    longest = [
        [max(durations[index] for index in batch) for batch in batches]
        for batches in ranks_of(durations, 4, 0, batch_duration=100)
    ]
    assert np.mean(np.ptp(longest, axis=0)) < 1.0


def test_buckets_have_equal_seconds_or_the_given_boundaries() -> None:
    durations = np.random.default_rng(0).permutation(np.linspace(0.5, 20, 1000))
    seconds = [durations[bucket].sum() for bucket in split_by_duration(durations, 5)]
    assert seconds == pytest.approx([sum(seconds) / 5] * 5, rel=0.02)
    low, middle, high = split_by_duration(np.array([5.0, 1.0, 9.0, 4.9, 7.0]), 30, [5.0, 8.0])
    assert (low.tolist(), middle.tolist(), high.tolist()) == ([1, 3], [0, 4], [2])


def test_batches_of_one_are_repeated_or_dropped_if_ranks_cannot_share_them() -> None:
    durations = [10.0] * 5
    repeated = [index for batches in ranks_of(durations, 2, 0, batch_duration=10) for (index,) in batches]
    assert (len(repeated), set(repeated)) == (6, {0, 1, 2, 3, 4})
    dropped = ranks_of(durations, 2, 0, batch_duration=10, drop_last=True)
    assert len({index for batches in dropped for (index,) in batches}) == 4
    assert len(ranks_of([10.0], 3, 0, batch_duration=10, drop_last=True)[2]) == 1


def test_an_utterance_above_the_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="longest utterance costs 30 s"):
        DurationBatches([1.0, 30.0], batch_duration=20)
