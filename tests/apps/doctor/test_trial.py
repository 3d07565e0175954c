"""The trial: steps of a real model, also in the process that measures them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from nest_ssl.apps.doctor import trial as trial_module
from nest_ssl.apps.doctor.diagnosis import Diagnosis, diagnose
from nest_ssl.apps.doctor.machine import Facts
from nest_ssl.apps.doctor.plan import load_train, make_plan
from nest_ssl.apps.doctor.search import MemoryCost, fit_memory
from nest_ssl.apps.doctor.steps import Outcome, OutOfTime, StartError, Steps, Trial, TrialProcess
from nest_ssl.apps.doctor.trial import TrialReport, run_trial, time_loader
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from nest_ssl.training.run import train
from tests.apps.doctor.machines import made_up
from tests.waiting import PATIENCE

MORE, LESS = 1.1, 0.75  # measured memory relative to the prediction, which depends on the allocator
GIGABYTE = 10**9
MINUTES = PATIENCE / 60
Command = Callable[..., CommandLine]


def settings(command: CommandLine) -> dict[str, Any]:
    return OmegaConf.to_container(load_config(command).model)  # type: ignore[return-value]


def bench(command: CommandLine, memory: int = 8 * GIGABYTE, seconds: float = PATIENCE) -> TrialProcess:
    return TrialProcess(settings(command), "cpu", memory, time.monotonic() + seconds)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_a_step_is_timed_in_every_precision_and_numerics(command: Command, numerics: str, precision: str) -> None:
    steps = Steps(settings(command(f"model.numerics={numerics}")), "cpu")
    before = torch.cat([parameter.detach().flatten() for parameter in steps.model.parameters()])
    outcome = steps.measure(Trial(2, 1.5, precision))
    assert outcome.fits
    assert outcome.speed > 0
    assert outcome.peak > sum(parameter.nbytes for parameter in steps.model.parameters() if parameter.requires_grad)
    assert steps.optimizer.state  # the optimizer has its moments, as in a run
    assert torch.equal(before, torch.cat([parameter.detach().flatten() for parameter in steps.model.parameters()]))


@pytest.mark.slow
def test_the_peak_of_a_large_batch_is_predicted_from_small_ones(command: Command) -> None:
    small = [Trial(1, 4.0), Trial(1, 12.0), Trial(2, 12.0), Trial(4, 12.0)]
    large = Trial(16, 16.0)  # five times the audio
    with bench(command("model.encoder.subsampling_conv_channels=32")) as one:
        cost = fit_memory([one.measure(trial) for trial in small])
        measured = one.measure(large)
    predicted = cost.peak(large.batch_size, large.seconds)
    assert LESS * predicted < measured.peak < MORE * predicted
    assert measured.peak > 1.5 * cost.always  # most of the memory is the batch's


@pytest.mark.slow
def test_a_batch_that_is_too_large_ends_its_process_and_not_the_trial(command: Command) -> None:
    with bench(command(), memory=int(1.2 * GIGABYTE)) as one:
        assert not one.measure(Trial(400, 30.0)).fits
        after = one.measure(Trial(1, 2.0))
    assert after.fits
    assert after.speed > 0


@pytest.mark.slow
def test_a_model_that_is_too_large_by_itself_is_reported(command: Command) -> None:
    with bench(command(), memory=10**8) as one, pytest.raises(StartError, match="more memory than is free"):
        one.measure(Trial(1, 2.0))


@pytest.mark.slow
def test_a_model_that_cannot_be_built_is_a_problem_with_the_message_of_the_run(command: Command) -> None:
    found = diagnose(command("model.encoder.n_heads=3"), lambda share, text: None, lengths=(2.0,))
    assert found.would_stop
    assert any("model.encoder" in finding.found for finding in found.findings if finding.state == "problem")


def test_a_deadline_ends_the_process(command: Command) -> None:
    with bench(command(), seconds=1e-3) as one:
        with pytest.raises(OutOfTime):
            one.measure(Trial(1, 2.0))
        assert multiprocessing.active_children() == []


def test_a_trial_without_time_measures_nothing_and_says_so(command: Command) -> None:
    facts = Facts()
    plan = make_plan(load_config(command()), facts)
    report = run_trial(plan, facts, 1e-3, [60.0], lambda share, text: None)
    assert (report.buckets, report.advice, report.workers) == ([], [], None)
    assert "the time was over" in report.findings[0].found


class MadeUpBench:
    """A process whose steps take a fixed time or, if saturated, a time for each second of audio.

    Memory follows a known cost, and time ends after a number of trials.
    """

    LAW = MemoryCost(always=10**9, second=10**6, square=10**4)

    def __init__(self, trials: int, seconds: float = 0.1, memory: float = 19e9, saturated: bool = False) -> None:
        self.left, self.seconds, self.memory, self.saturated = trials, seconds, memory, saturated

    def __call__(self, *arguments: object) -> MadeUpBench:
        return self

    def __enter__(self) -> MadeUpBench:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def measure(self, trial: Trial) -> Outcome:
        if not self.left:
            raise OutOfTime
        self.left -= 1
        peak = self.LAW.peak(trial.batch_size, trial.seconds)
        seconds = self.seconds * (trial.audio if self.saturated else 1)
        return Outcome(trial, seconds if peak <= self.memory else None, int(peak), int(self.LAW.always))


@pytest.fixture
def tried(command: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrialReport]:
    """Return a function that runs a trial in a made-up process on a made-up machine."""
    monkeypatch.setattr(trial_module, "available_memory", lambda: 19 * GIGABYTE)

    def run(bench: MadeUpBench, batch_size: int = 2, **facts: Any) -> TrialReport:
        monkeypatch.setattr(trial_module, "TrialProcess", bench)
        machine = made_up(**facts)
        asked = command(f"model.train_ds.batch_size={batch_size}", "model.train_ds.num_workers=0")
        return run_trial(make_plan(load_config(asked), machine), machine, 60.0, (4.1, 12.0), lambda share, text: None)

    return run


@pytest.mark.parametrize("trials", [1, 2])
def test_a_trial_that_ran_out_of_time_keeps_the_batch_and_says_why(
    tried: Callable[..., TrialReport], trials: int
) -> None:
    report = tried(MadeUpBench(trials))
    assert {bucket.largest for bucket in report.buckets} == {None}
    assert report.advice[0].overrides == ()
    assert "no time to tell whether 2 x 12" in report.advice[0].reason
    assert "--minutes" in report.advice[0].reason


def test_the_time_that_is_left_after_the_search_goes_to_the_batch_that_is_configured(
    tried: Callable[..., TrialReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(search: Any, lengths: list[float]) -> Any:
        search.try_once(1, lengths[0])
        return search.buckets(lengths)

    monkeypatch.setattr(trial_module.Search, "run", cut_short)
    report = tried(MadeUpBench(9))
    assert report.advice[0].reason.startswith("batch_size=2: it fits")


def test_a_prediction_that_proves_wrong_is_not_recommended(tried: Callable[..., TrialReport]) -> None:
    less = MadeUpBench.LAW.peak(
        3, 12.0
    )  # less than the free memory; larger batches, which would show it, are not tried
    report = tried(MadeUpBench(99, seconds=0.01, memory=less, saturated=True), batch_size=8)
    assert report.verified is not None
    assert (report.verified.trial.batch_size, report.verified.fits) == (8, False)
    assert report.overrides[:2] == ["model.train_ds.batch_size=2", "trainer.accumulate_grad_batches=4"]


def test_workers_whose_batches_do_not_fit_into_shared_memory_are_not_tried(tried: Callable[..., TrialReport]) -> None:
    report = tried(MadeUpBench(9, seconds=1e-4), shared_memory=1000)
    assert report.workers is not None
    assert [loading.workers for loading in report.workers.tried] == [0]
    (finding,) = [finding for finding in report.findings if finding.name == "shared memory"]
    assert finding.state == "warning"
    assert "--shm-size" in finding.advice


def test_loading_is_timed_with_and_without_processes(command: Command) -> None:
    model = settings(command())
    for workers in (0, 1):
        loader = load_train(model, num_workers=workers, batch_size=2)
        assert 0 < time_loader(loader, workers, seconds=1.0).seconds < PATIENCE


def test_a_loader_of_one_batch_takes_time_too(command: Command) -> None:
    loader = load_train(settings(command()), num_workers=0, batch_size=12)
    assert len(loader) == 1
    assert time_loader(loader, 0, seconds=1.0).seconds > 1e-4


@pytest.fixture(scope="module")
def messages() -> list[str]:
    return []


@pytest.fixture
def diagnosis(command: Command, messages: list[str]) -> Diagnosis:
    one = command("model.train_ds.batch_size=1")
    return diagnose(one, lambda share, text: messages.append(text), minutes=MINUTES)


@pytest.mark.slow
def test_what_is_recommended_can_be_trained_within_the_time_given(
    diagnosis: Diagnosis, command: Command, messages: list[str]
) -> None:
    report = diagnosis.trial
    assert report is not None, diagnosis.no_trial
    assert report.buckets
    assert "building the model" in messages
    words = ["trainer.max_steps=1", "trainer.limit_val_batches=0", "trainer.enable_progress_bar=false"]
    cfg = load_config(command("model.train_ds.batch_size=1", *report.overrides, *words))
    train(cfg)
    assert not diagnosis.would_stop
    assert diagnosis.train_command().startswith("nest-ssl train --config-name nest_fast-conformer")
    for override in report.overrides:
        assert override in diagnosis.train_command()
