"""Whether a run is active, finished or stopped, and how long it still needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nest_ssl.apps.report.run import Run, open_runs
from nest_ssl.apps.report.summary import SILENCE_GAPS, SILENCE_SECONDS, status_of
from tests.apps.report.example_runs import CONFIG, training, write_events, write_run

BEGAN = 1_000_000.0


def run_of(folder: Path, **options: object) -> Run:
    (run,) = open_runs([write_run(folder, began=BEGAN, **options)])
    return run


def config_with(**trainer: object) -> dict:
    return {**CONFIG, "trainer": {**CONFIG["trainer"], **trainer}}


def test_all_steps_done_is_finished_however_old(tmp_path: Path) -> None:
    status = status_of(run_of(tmp_path, steps=1000), now=BEGAN + 1e9)
    assert (status.state, status.step, status.total, status.seconds_left) == ("finished", 1000, 1000, None)


@pytest.mark.parametrize(("silence", "state"), [(SILENCE_SECONDS - 1, "running"), (SILENCE_SECONDS + 1, "stopped")])
def test_a_run_that_logs_nothing_for_long_is_stopped(tmp_path: Path, silence: float, state: str) -> None:
    run = run_of(tmp_path, steps=500)
    assert run.history.last_time is not None
    assert status_of(run, now=run.history.last_time + silence).state == state


def test_a_run_with_long_gaps_may_be_silent_for_longer(tmp_path: Path) -> None:
    values = training()
    write_events(tmp_path, (values, range(4, 9, 5)), (values, range(1000, 1010, 5)), began=BEGAN)
    (run,) = open_runs([tmp_path])
    gap = 1000 - 4  # seconds, at one step a second
    assert run.history.last_time is not None
    assert status_of(run, run.history.last_time + SILENCE_GAPS * gap - 1).state == "running"
    assert status_of(run, run.history.last_time + SILENCE_GAPS * gap + 1).state == "stopped"


def test_time_left_is_the_steps_left_at_the_present_speed(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=500)  # 0.2 s a step
    status = status_of(run, now=run.history.last_time or 0)
    assert status.steps_per_second == pytest.approx(5.0)
    assert status.seconds_left == pytest.approx(500 * 0.2)


def test_epochs_bound_a_run_by_their_length_so_far(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=500, config=config_with(max_steps=-1, max_epochs=20))  # an epoch is 40 steps
    status = status_of(run, now=run.history.last_time or 0)
    assert status.total_is_estimated
    assert status.total == pytest.approx(800, abs=5)
    assert status.state == "running"


def test_an_epochs_bound_that_is_reached_is_finished(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=800, config=config_with(max_steps=-1, max_epochs=20))
    status = status_of(run, now=BEGAN + 1e9)
    assert (status.state, status.step, status.total, status.total_is_estimated) == ("finished", 800, 800, False)


def test_without_a_bound_there_is_no_time_left(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=500, config=config_with(max_steps=-1))
    status = status_of(run, now=run.history.last_time or 0)
    assert (status.total, status.seconds_left) == (None, None)


def test_a_run_that_has_just_begun_is_not_called_stopped(tmp_path: Path) -> None:
    write_events(tmp_path, ({}, range(1)), began=BEGAN)
    (run,) = open_runs([tmp_path])
    assert status_of(run, BEGAN + 60).state == "silent"
    assert status_of(run, BEGAN + 3600).state == "stopped"


def test_a_checkpoint_may_be_newer_than_the_log(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=998)  # the last logged step is not the last one
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "NEST--val_loss=2.1-step=1000-last.ckpt").touch()
    assert status_of(run, now=BEGAN + 1e9).state == "finished"


def test_a_run_that_training_made_is_finished(trained: Path) -> None:
    (run,) = open_runs([trained])
    status = status_of(run, now=(run.history.last_time or 0) + 1e6)
    assert (status.state, status.step) == ("finished", 8)
