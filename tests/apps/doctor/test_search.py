"""The search and its model of memory, on simulated machines whose memory cost is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.apps.doctor.search import Bucket, MemoryCost, Search, clip_lengths, fit_memory
from nest_ssl.apps.doctor.steps import Outcome, OutOfTime, Trial

LAW = MemoryCost(always=2e9, second=1e8, square=2e6)
LENGTHS = [2.0, 10.0, 20.0]


class Simulated:
    """A machine where a step takes a fixed time plus a time for each second of audio."""

    def __init__(self, memory: float, *, fixed: float = 0.1, second: float = 0.01, time: float = 1e9) -> None:
        self.memory, self.fixed, self.second, self.left = memory, fixed, second, time
        self.tried: list[Trial] = []

    def measure(self, trial: Trial) -> Outcome:
        self.tried.append(trial)
        seconds = self.fixed + self.second * trial.audio
        if 2 * seconds > self.left:
            raise OutOfTime
        self.left -= 2 * seconds
        peak = LAW.peak(trial.batch_size, trial.seconds)
        return Outcome(trial, seconds if peak <= self.memory else None, int(peak), int(LAW.always))

    def search(self, *, may_overflow: bool, lengths: list[float] = LENGTHS) -> list[Bucket]:
        search = Search(self.measure, int(self.memory), may_overflow, lambda: self.left, lambda text: None)
        return search.run(lengths)


@pytest.mark.parametrize("memory", [4e9, 16e9, 80e9])
def test_on_a_gpu_the_largest_is_found_by_trying(memory: float) -> None:
    for bucket in Simulated(memory).search(may_overflow=True):
        most = LAW.largest(bucket.seconds, memory)
        assert bucket.measured
        assert most * 7 // 8 - 1 <= bucket.largest <= most


@pytest.mark.parametrize("memory", [4e9, 16e9, 80e9])
def test_on_a_cpu_nothing_is_tried_that_does_not_fit(memory: float) -> None:
    machine = Simulated(memory, fixed=100.0)  # larger batches are always faster
    buckets = machine.search(may_overflow=False)
    assert all(LAW.peak(trial.batch_size, trial.seconds) <= memory for trial in machine.tried)
    for bucket in buckets:
        assert bucket.largest == pytest.approx(LAW.largest(bucket.seconds, memory), abs=1)


def test_doubling_ends_where_speed_stops_growing() -> None:
    (bucket,) = Simulated(1e12, fixed=0.1, second=0.01).search(may_overflow=False, lengths=[10.0])
    assert bucket.saturated
    assert bucket.useful is not None
    best = max(outcome.speed for outcome in bucket.outcomes)
    assert bucket.useful.speed >= best / 1.05
    assert bucket.useful.trial.batch_size < bucket.outcomes[-1].trial.batch_size


def test_a_length_that_does_not_fit_has_no_useful_batch() -> None:
    (bucket,) = Simulated(1e9).search(may_overflow=True, lengths=[10.0])
    assert (bucket.largest, bucket.useful) == (0, None)


def test_a_length_that_was_neither_measured_nor_predicted_is_unknown() -> None:
    machine = Simulated(80e9, fixed=0.0, second=1.0, time=20.0)  # enough time for two clips of 2 s
    short, *longer = machine.search(may_overflow=False)
    assert (short.largest, short.measured, short.safe) == (None, False, 2)
    assert [(bucket.largest, bucket.outcomes, bucket.safe) for bucket in longer] == [(None, (), 0)] * 2


def test_clips_of_one_length_predict_no_longer_ones() -> None:
    outcomes = [Outcome(Trial(clips, 2.0), 1.0, int(LAW.peak(clips, 2.0)), int(LAW.always)) for clips in (1, 2, 4)]
    search = Search(Simulated(80e9).measure, int(80e9), False, lambda: 0.0, lambda text: None)
    search.outcomes = outcomes
    short, long = search.buckets([2.0, 20.0])
    assert short.largest == pytest.approx(LAW.largest(2.0, 80e9), abs=1)
    assert long.largest is None


def test_a_length_that_looked_too_large_at_first_is_tried_when_more_is_known() -> None:
    machine = Simulated(20e9, fixed=100.0)
    bound = LAW.always + (LAW.peak(1, 2.0) - LAW.always) * (40.0 / 2.0) ** 2  # the estimate from one clip of 2 s alone
    assert LAW.peak(1, 40.0) < machine.memory < bound
    long = machine.search(may_overflow=False, lengths=[2.0, 40.0])[-1]
    assert [outcome.trial.batch_size for outcome in long.outcomes] == [1]
    assert long.largest == pytest.approx(LAW.largest(40.0, machine.memory), abs=1)


@pytest.mark.parametrize("time", [0.5, 3.0, 20.0])
def test_the_time_given_is_kept(time: float) -> None:
    machine = Simulated(80e9, fixed=0.2, second=0.02, time=time)
    machine.search(may_overflow=True)
    assert machine.left >= 0


def test_lengths_are_the_longest_of_buckets_of_the_data() -> None:
    tops = clip_lengths(np.linspace(1, 20, 1000), (), 60.0)
    assert tops[-1] == 20.0
    assert len(tops) == 4


def test_lengths_without_data_keep_to_the_longest_allowed() -> None:
    assert clip_lengths(np.empty(0), (), 12.0) == [5.0, 10.0, 12.0]
    assert clip_lengths(np.empty(0), (), None) == [5.0, 10.0, 20.0]
    assert clip_lengths(np.empty(0), (7.0, 3.0), 12.0) == [3.0, 7.0]


def test_the_longest_of_the_data_is_among_the_lengths_asked_for() -> None:
    assert clip_lengths(np.array([1.0, 9.5]), (3.0,), None) == [3.0, 9.5]
    assert clip_lengths(np.array([1.0, 2.0]), (3.0,), None) == [3.0]


SIZES = [(1, 2.0), (1, 5.0), (1, 12.0), (2, 2.0), (2, 5.0), (4, 12.0)]
costs = st.builds(MemoryCost, st.floats(1e8, 1e10), st.one_of(st.just(0.0), st.floats(1e5, 1e9)), st.floats(1e6, 1e8))


def measured(cost: MemoryCost, noise: float = 0.0) -> list[Outcome]:
    return [
        Outcome(Trial(clips, seconds), 1.0, int(cost.peak(clips, seconds) * (1 + noise * (-1) ** index)))
        for index, (clips, seconds) in enumerate(SIZES)
    ]


@given(costs)
def test_the_cost_is_recovered_from_measurements(cost: MemoryCost) -> None:
    assert fit_memory(measured(cost)).peak(16, 30.0) == pytest.approx(cost.peak(16, 30.0), rel=0.01)


def test_clips_of_one_length_give_no_quadratic_term() -> None:
    outcomes = [Outcome(Trial(clips, 3.0), 1.0, 10**9 + clips * 10**7) for clips in (1, 2, 4)]
    cost = fit_memory(outcomes)
    assert cost.square == 0
    assert cost.peak(8, 3.0) == pytest.approx(10**9 + 8 * 10**7)


@given(costs, st.floats(0, 0.1))
def test_no_cost_is_negative_and_no_measurement_is_above(cost: MemoryCost, noise: float) -> None:
    outcomes = measured(cost, noise)
    found = fit_memory(outcomes)
    assert min(found.always, found.second, found.square) >= 0
    for outcome in outcomes:
        assert found.peak(outcome.trial.batch_size, outcome.trial.seconds) >= outcome.peak * 0.999


@given(costs, st.floats(1.0, 60.0), st.floats(1e9, 1e11))
def test_the_largest_fits_and_one_more_does_not(cost: MemoryCost, seconds: float, memory: float) -> None:
    largest = cost.largest(seconds, memory)
    assert largest == 0 or cost.peak(largest, seconds) <= memory * (1 + 1e-9)
    assert cost.peak(largest + 1, seconds) > memory * (1 - 1e-9)


@given(costs, st.lists(st.floats(1.0, 60.0), min_size=1, max_size=50))
def test_a_batch_within_its_duration_fits_whatever_its_lengths(cost: MemoryCost, lengths: list[float]) -> None:
    memory = cost.always + 5e10
    duration, quadratic = cost.batch_duration(memory)
    if quadratic is None or duration == float("inf"):
        return
    peak = cost.always + sum(cost.second * d + cost.square * d**2 for d in lengths)
    fits = sum(d + d**2 / quadratic for d in lengths) <= duration
    assert fits == (peak <= memory) or peak == pytest.approx(memory)
