from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.apps.doctor.search import MemoryCost, fit_memory
from nest_ssl.apps.doctor.steps import Outcome, Trial

SIZES = [(1, 2.0), (1, 5.0), (1, 12.0), (2, 2.0), (2, 5.0), (4, 12.0)]
costs = st.builds(MemoryCost, st.floats(1e8, 1e10), st.one_of(st.just(0.0), st.floats(1e5, 1e9)), st.floats(1e6, 1e8))


def measured(cost: MemoryCost, noise: float = 0.0) -> list[Outcome]:
    return [
        Outcome(Trial(clips, seconds), 1.0, int(cost.peak(clips, seconds) * (1 + noise * (-1) ** index)))
        for index, (clips, seconds) in enumerate(SIZES)
    ]


@given(costs)
def test_the_law_is_found_again(cost: MemoryCost) -> None:
    assert fit_memory(measured(cost)).peak(16, 30.0) == pytest.approx(cost.peak(16, 30.0), rel=0.01)


def test_clips_of_one_length_tell_nothing_of_squares() -> None:
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
