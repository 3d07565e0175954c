from __future__ import annotations

from typing import Any

import pytest

from nest_ssl.doctor.loading import Loading, Workers, choose_workers
from nest_ssl.doctor.recommend import Advice, batch_advice, precision_advice, workers_advice
from nest_ssl.doctor.search import Bucket
from nest_ssl.doctor.steps import Outcome, Trial


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


def test_no_batch_is_larger_than_the_data() -> None:
    advice = batch_advice(BUCKETS, {"batch_size": 2}, accumulate=1, utterances=5)
    assert advice is not None
    assert advice.overrides == ("model.train_ds.batch_size=5",)


def test_where_nothing_fits_nothing_is_recommended() -> None:
    nothing = Bucket(5.0, (Outcome(Trial(1, 5.0), None),), 0, measured=True, saturated=False)
    assert batch_advice([nothing], {"batch_size": 2}, 1, None) is None


@pytest.mark.parametrize(("speed", "overrides"), [(2.0, ("trainer.precision=bf16-mixed",)), (1.01, ()), (0.1, ())])
def test_a_precision_is_recommended_only_if_it_is_faster(speed: float, overrides: tuple[str]) -> None:
    now, other = Outcome(Trial(4, 5.0, "32"), 1.0), Outcome(Trial(4, 5.0, "bf16-mixed"), 1 / speed)
    assert precision_advice(now, other).overrides == overrides


def choose(alone: float, step: float, most: int) -> Workers:
    """Loading that is shared out evenly among processes."""
    return choose_workers(
        lambda workers: Loading(workers, alone / max(1, workers)), step, most=most, remaining=lambda: 1.0
    )


@pytest.mark.parametrize(
    ("alone", "step", "most", "workers", "keeps_up"),
    [
        (0.01, 1.0, 8, 0, True),
        (0.5, 1.0, 8, 1, True),
        (3.0, 1.0, 8, 4, True),
        (20.0, 1.0, 8, 8, False),
        (20.0, 1.0, 1, 1, False),
    ],
)
def test_the_fewest_processes_that_keep_up(alone: float, step: float, most: int, workers: int, keeps_up: bool) -> None:
    found = choose(alone, step, most)
    assert (found.best.workers, found.keeps_up) == (workers, keeps_up)


def test_the_configured_number_is_kept_if_it_is_that() -> None:
    found = choose(3.0, 1.0, 8)
    assert workers_advice(found, configured=4, gpu=True).overrides == ()
    assert workers_advice(found, configured=0, gpu=True) == Advice(
        ("model.train_ds.num_workers=4",),
        "a batch loads in 3 s, a step takes 1 s; with 4 the next is there in 0.75 s",
    )
    assert "bottleneck" in workers_advice(choose(20.0, 1.0, 8), configured=0, gpu=True).reason
