"""Intervals and differences, against scipy and known cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from nest_ssl.apps.probing.report import Estimate, Report, accuracy, difference


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (7, 10), (10, 10), (123, 400)])
def test_the_interval_is_wilsons(hits: int, count: int) -> None:
    found = accuracy(np.arange(count) < hits)
    expected = binomtest(hits, count).proportion_ci(0.95, "wilson")
    assert found.value == hits / count
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_seeds_are_averaged_and_do_not_count_as_utterances() -> None:
    one = np.array([True, False] * 50)
    assert accuracy(np.stack([one, one, one])) == accuracy(one)


def test_a_difference_covers_the_truth_as_often_as_it_says() -> None:
    """Simulate 200 experiments of 150 utterances; 95 % of the intervals contain the true difference of 10 points."""
    generator = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        luck = generator.random(150)
        found = difference(luck < 0.7, luck < 0.6, [str(index) for index in range(150)], seed, draws=500)
        covered += found.low <= 0.1 <= found.high
    assert 0.9 <= covered / 200 <= 0.99


def test_utterances_of_a_group_are_not_independent() -> None:
    generator = np.random.default_rng(1)
    better, worse = generator.random(20) < 0.7, generator.random(20) < 0.5
    by_group = difference(better.repeat(10), worse.repeat(10), [str(index // 10) for index in range(200)])
    as_if_single = difference(better.repeat(10), worse.repeat(10), [str(index) for index in range(200)])
    assert by_group.high - by_group.low > 2 * (as_if_single.high - as_if_single.low)


def test_seeds_that_differ_make_a_difference_less_sure() -> None:
    """Compare with two baselines of which one is as good as the model; their mean would hide that."""
    groups = [str(index) for index in range(400)]
    model, good, bad = (np.arange(400) < hits for hits in (320, 320, 240))
    alike = difference(model, np.stack([np.arange(400) < 280] * 2), groups)
    uneven = difference(model, np.stack([good, bad]), groups)
    assert alike.value == uneven.value == pytest.approx(0.1)
    assert alike.low > 0 >= uneven.low


def test_the_same_answers_differ_by_nothing() -> None:
    correct, groups = np.array([True, False, True]), ["a", "b", "c"]
    for other in (correct, np.stack([correct] * 3)):
        found = difference(correct, other, groups)
        assert (found.value, found.low, found.high) == (0, 0, 0)


@pytest.mark.parametrize(("low", "learned"), [(0.1, True), (0.0, False), (-0.1, False), (float("nan"), False)])
def test_only_a_gain_that_is_known_to_be_above_zero_counts(low: float, learned: bool) -> None:
    report = Report("speaker", 2, 10, 10, 1, [], {"random weights": Estimate(0.2, low, 0.3)})
    assert report.learned is learned
