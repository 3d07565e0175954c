"""Thinning of long series, which keeps every spike, and running means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.apps.report.charts import BUCKETS, curve_of, extremes, running_mean
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.texts import words

LOSS = words("losses")


def series_of(values: np.ndarray) -> Series:
    steps = np.arange(len(values))
    return Series(steps, values, steps.astype(float))


@given(st.integers(1, 5000), st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_first_last_smallest_and_largest_are_always_drawn(length: int, seed: int, buckets: int) -> None:
    values = np.random.default_rng(seed).normal(size=length)
    chosen = extremes(values, buckets)
    assert {0, length - 1, int(values.argmin()), int(values.argmax())} <= set(chosen.tolist())
    assert (np.diff(chosen) > 0).all()
    assert len(chosen) <= 2 * buckets + 2


def test_a_single_spike_among_a_hundred_thousand_stays() -> None:
    values = np.ones(100_000)
    values[54_321] = 9.0
    curve = curve_of(series_of(values), LOSS)
    assert len(curve.x) <= 2 * BUCKETS + 2
    assert curve.y[curve.x == 54_321].tolist() == [9.0]
    assert curve.mean is not None
    assert curve.mean.max() < 1.1


@pytest.mark.parametrize("width", [1, 5, 51])
def test_the_running_mean_equals_a_simple_loop(width: int) -> None:
    values = np.random.default_rng(0).normal(size=200)
    half = width // 2
    expected = [values[max(0, place - half) : place + half + 1].mean() for place in range(200)]
    assert np.allclose(running_mean(values, width), expected)


def test_a_huge_value_does_not_spoil_the_mean_after_it() -> None:
    values = np.ones(1000)
    values[100] = 1e30
    assert np.allclose(running_mean(values, 21)[200:], 1.0)


def test_a_short_series_has_no_running_mean() -> None:
    assert curve_of(series_of(np.ones(10)), LOSS).mean is None


def test_steps_of_values_that_are_not_finite_are_listed_separately() -> None:
    curve = curve_of(series_of(np.array([1.0, np.nan, 2.0, np.inf])), LOSS)
    assert curve.y.tolist() == [1.0, 2.0]
    assert curve.not_finite.tolist() == [1.0, 3.0]
