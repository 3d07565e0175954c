"""The cost of watching is measured in a real run, in seconds per step and as shares of the time."""

from __future__ import annotations

import time

import pytest

from benchmarks import measure
from benchmarks.plan import EXACT, FAST, Measurement, Side
from benchmarks.watching import (
    MODES,
    VALIDATE_EVERY,
    WARM_UP_STEPS,
    WARM_UP_VALIDATIONS,
    Mode,
    TimeBreakdown,
    costs,
    run_watched,
)
from tests.benchmarks.conftest import MakeJob

STEPS = 44
MEASUREMENT = Measurement("test", "share_10", (1.0, 2.0) * 2, kind="watching", steps=STEPS)


def spent(mode: Mode, *around: float, computing: float = 1.0) -> list[TimeBreakdown]:
    return [TimeBreakdown(mode, seconds, seconds + computing) for seconds in around]


def test_costs_are_the_added_time_and_one_slow_step_does_not_change_them() -> None:
    steps = [
        *spent("nothing", 0.01, 0.01, 0.5),
        *spent("ordinary", 0.02, 0.02, 0.02),
        *spent("logged", 0.11, 0.1, 0.12),
    ]
    found = costs(steps, [*spent("nothing", 0.1), *spent("logged", 0.4)])
    assert found["step_seconds"] == pytest.approx(1.01)
    assert found["ordinary_seconds"] == pytest.approx(0.01)
    assert found["logged_seconds"] == pytest.approx(0.1)
    assert found["validation_seconds"] == pytest.approx(0.3)
    assert found["share_10"] == pytest.approx(0.019 / 1.029)  # nine ordinary steps and a logged one
    assert found["share_50"] == pytest.approx(0.0118 / 1.0218)


@pytest.mark.parametrize("side", [EXACT, FAST], ids=lambda side: side.name)
def test_steps_with_and_without_watching_alternate_in_a_real_run(side: Side, make_job: MakeJob) -> None:
    watchers = run_watched(measure._compose(make_job(MEASUREMENT, side)), STEPS)
    # the last step is not counted, because its end is not measured
    counted = [step for step in range(WARM_UP_STEPS, STEPS - 1) if (step + 1) % VALIDATE_EVERY]
    assert [step.mode for step in watchers.steps] == [MODES[step % len(MODES)] for step in counted]
    assert len(watchers.validations) == STEPS // VALIDATE_EVERY - WARM_UP_VALIDATIONS
    assert {one.mode for one in watchers.validations} == {"nothing", "logged"}
    assert all(0 < one.around < one.whole for one in (*watchers.steps, *watchers.validations))
    watching = {type(part).__name__ for part in (*watchers._all["callbacks"], *watchers._all["loggers"])}
    assert watching >= {
        *("TrainingMonitor", "Throughput", "BottleneckNotice", "TrainingProgress", "NonFiniteSteps", "ProblemReport"),
        *("StepTiming", "ValidationSamples", "PatientTensorBoardLogger"),
    }


def test_every_cost_is_measured(make_job: MakeJob) -> None:
    numbers = measure.watching("nest_ssl", make_job(MEASUREMENT), time.time())
    assert 0 < numbers["ordinary_seconds"] < numbers["logged_seconds"]
    assert numbers["validation_seconds"] > 0
    assert 0 < numbers["share_50"] < numbers["share_10"] < 1
