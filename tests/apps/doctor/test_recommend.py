from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nest_ssl.apps.doctor.recommend import (
    Loading,
    Recommendation,
    Workers,
    batch_advice,
    choose_workers,
    precision_advice,
    workers_advice,
)
from nest_ssl.apps.doctor.search import Bucket
from nest_ssl.apps.doctor.steps import Outcome, Trial


def bucket(seconds: float, largest: int, speeds: dict[int, float]) -> Bucket:
    outcomes = [Outcome(Trial(clips, seconds), clips * seconds / speed, 1, 1) for clips, speed in speeds.items()]
    return Bucket(seconds, tuple(outcomes), largest, measured=True, saturated=True)


GROWS = {1: 10.0, 2: 18.0, 4: 30.0, 8: 40.0, 16: 41.0}
BUCKETS = [bucket(5.0, 64, GROWS), bucket(10.0, 32, GROWS), bucket(20.0, 12, GROWS)]


@pytest.mark.parametrize(
    ("train_ds", "expected"),
    [
        ({"batch_size": 2}, ("model.train_ds.batch_size=8",)),
        ({"batch_size": 8}, ()),
        ({"batch_size": 12}, ()),
        ({"batch_size": 24}, ("model.train_ds.batch_size=12", "trainer.accumulate_grad_batches=2")),
        ({"batch_duration": 30}, ("model.train_ds.batch_duration=80",)),
        ({"batch_duration": 200}, ()),
        ({"batch_duration": 480}, ("model.train_ds.batch_duration=240", "trainer.accumulate_grad_batches=2")),
    ],
)
def test_a_batch_is_changed_only_if_it_is_too_large_or_slow(train_ds: dict[str, Any], expected: tuple[str]) -> None:
    advice = batch_advice(BUCKETS, train_ds, accumulate=1, utterances=1000)
    assert advice is not None
    assert advice.overrides == expected


def test_lengths_that_were_only_predicted_decide_what_fits_too() -> None:
    untried = Bucket(60.0, (), 4, measured=False, saturated=False)
    advice = batch_advice([*BUCKETS, untried], {"batch_size": 2}, accumulate=1, utterances=None)
    assert advice is not None
    assert advice.overrides == ("model.train_ds.batch_size=4",)


UNTRIED = Bucket(60.0, (), None, measured=False, saturated=False)
CUT_SHORT = dataclasses.replace(bucket(4.1, 0, {1: 1.0}), largest=None, measured=False, saturated=False)


@pytest.mark.parametrize(
    ("buckets", "train_ds", "says"),
    [
        ([CUT_SHORT, UNTRIED], {"batch_size": 2}, "no time to tell whether 2 x 60 s fits"),
        ([CUT_SHORT], {"batch_size": 2}, "no time to tell whether 2 x 4.1 s fits"),
        ([*BUCKETS, UNTRIED], {"batch_size": 2}, "no time to tell whether 2 x 60 s fits"),
        ([CUT_SHORT, UNTRIED], {"batch_duration": 120}, "no time to tell whether 2 x 60 s fits"),
        ([CUT_SHORT], {"batch_size": 1}, "it fits, and there was no time to try larger ones"),
    ],
)
def test_a_batch_that_may_or_may_not_fit_is_kept(buckets: list[Bucket], train_ds: dict[str, Any], says: str) -> None:
    advice = batch_advice(buckets, train_ds, accumulate=1, utterances=None)
    assert advice is not None
    assert advice.overrides == ()
    assert says in advice.reason


def test_an_overflow_of_short_clips_counts_although_longer_ones_were_not_tried() -> None:
    advice = batch_advice([BUCKETS[-1], UNTRIED], {"batch_size": 24}, accumulate=1, utterances=None)
    assert advice is not None
    assert advice.overrides == ("model.train_ds.batch_size=12", "trainer.accumulate_grad_batches=2")
    assert advice.reason.startswith("12 clips of 20 s fit, 24 may not")


@pytest.mark.parametrize("configured", [6, 8])
def test_only_what_was_seen_to_fit_is_relied_on(configured: int) -> None:
    overflowed = (*bucket(5.0, 4, {4: 1.0}).outcomes, Outcome(Trial(8, 5.0), None))
    one = Bucket(5.0, overflowed, 4, measured=True, saturated=False)
    advice = batch_advice([one], {"batch_size": configured}, accumulate=1, utterances=None)
    assert advice is not None
    assert advice.reason.startswith(f"4 clips of 5 s fit, {configured} may not")


def test_no_batch_is_larger_than_the_data() -> None:
    advice = batch_advice(BUCKETS, {"batch_size": 2}, accumulate=1, utterances=5)
    assert advice is not None
    assert advice.overrides == ("model.train_ds.batch_size=5",)


def test_nothing_is_recommended_if_nothing_fits() -> None:
    nothing = Bucket(5.0, (Outcome(Trial(1, 5.0), None),), 0, measured=True, saturated=False)
    assert batch_advice([nothing], {"batch_size": 2}, 1, None) is None


@pytest.mark.parametrize(("speed", "overrides"), [(2.0, ("trainer.precision=bf16-mixed",)), (1.01, ()), (0.1, ())])
def test_a_precision_is_recommended_only_if_it_is_faster(speed: float, overrides: tuple[str]) -> None:
    now, other = Outcome(Trial(4, 5.0, "32"), 1.0), Outcome(Trial(4, 5.0, "bf16-mixed"), 1 / speed)
    assert precision_advice(now, other).overrides == overrides


def choose(alone: float, step: float, most: int, tries: int = 9) -> Workers:
    """Choose workers if loading scales with their number, and time ends after so many measurements."""
    left = iter([1.0] * tries)
    return choose_workers(
        lambda workers: Loading(workers, alone / max(1, workers)), step, most=most, remaining=lambda: next(left, 0.0)
    )


@pytest.mark.parametrize(
    ("alone", "step", "most", "workers", "keeps_up"),
    [
        (0.01, 1.0, 8, 0, True),
        (0.5, 1.0, 8, 1, True),
        (3.0, 1.0, 8, 4, True),
        (20.0, 1.0, 8, 8, False),
        (20.0, 1.0, 1, 1, False),
        (20.0, 1.0, 0, 0, False),
    ],
)
def test_the_fewest_workers_that_keep_up_are_chosen(
    alone: float, step: float, most: int, workers: int, keeps_up: bool
) -> None:
    found = choose(alone, step, most)
    assert (found.best.workers, found.keeps_up) == (workers, keeps_up)


def test_the_configured_number_is_kept_if_it_is_that() -> None:
    found = choose(3.0, 1.0, 8)
    assert workers_advice(found, configured=4, gpu=True).overrides == ()
    assert workers_advice(found, configured=0, gpu=True) == Recommendation(
        ("model.train_ds.num_workers=4",),
        "a batch loads in 3 s, a step takes 1 s; with 4 workers a batch takes 0.75 s",
    )
    assert "bottleneck" in workers_advice(choose(20.0, 1.0, 8), configured=0, gpu=True).reason


def loaded(*seconds: float, cut_short: bool) -> Workers:
    """Return the times of a batch with 0, 1 and 2 workers, none of which keeps up with a step of 2 s."""
    tried = tuple(Loading(workers, taken) for workers, taken in enumerate(seconds))
    return Workers(tried, 2.0, tried[-1], keeps_up=False, cut_short=cut_short)


@pytest.mark.parametrize(
    ("workers", "says", "says_not"),
    [
        (loaded(0.22, cut_short=True), "no time to try workers", "bottleneck"),
        (loaded(5.0, cut_short=True), "bottleneck; there was no time to try workers", "more ("),
        (loaded(9.0, 5.0, 3.0, cut_short=True), "bottleneck; there was no time to try more", "workers ("),
        (loaded(9.0, 5.0, 3.0, cut_short=False), "loading is the bottleneck", "no time"),
    ],
)
def test_loading_is_the_bottleneck_only_if_it_takes_longer_than_a_step(
    workers: Workers, says: str, says_not: str
) -> None:
    reason = workers_advice(workers, configured=0, gpu=True).reason
    assert says in reason
    assert says_not not in reason


def test_lack_of_time_is_reported_only_if_workers_could_have_helped() -> None:
    assert not choose(0.05, 2.0, 8, tries=0).cut_short
    assert not choose(0.22, 2.0, 0, tries=0).cut_short
    assert choose(0.22, 2.0, 8, tries=0) == loaded(0.22, cut_short=True)


@pytest.mark.parametrize(("configured", "overrides"), [(8, ()), (1, ("model.train_ds.num_workers=2",))])
def test_workers_that_there_was_no_time_for_are_not_advised_against(configured: int, overrides: tuple[str]) -> None:
    workers = loaded(9.0, 5.0, 3.0, cut_short=True)
    assert workers_advice(workers, configured, gpu=True).overrides == overrides
