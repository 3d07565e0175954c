"""The trial: measure steps and data loading of a configuration in bounded time, and recommend values."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import OmegaConf

from nest_ssl.apps.doctor.check_result import CheckResult
from nest_ssl.apps.doctor.loading import Loading, Workers, choose_workers, time_loader
from nest_ssl.apps.doctor.machine_facts import Facts
from nest_ssl.apps.doctor.plan import RunPlan, check_shared_memory, load_train, workers_with_room
from nest_ssl.apps.doctor.recommend import Recommendation, batch_advice, precision_advice, typical, workers_advice
from nest_ssl.apps.doctor.search import Bucket, Limits, MemoryCost, Search, bucket_tops
from nest_ssl.apps.doctor.steps import Outcome, OutOfTime, StartError, Trial, TrialError, TrialProcess
from nest_ssl.errors import NestError
from nest_ssl.memory import available_memory

Progress = Callable[[float, str], None]  # share of the time that has passed, and what is being measured
_USED, _WATCHED = 0.8, 0.9  # shares of the free memory: for the recommended batch, and at which the process ends itself
_SEARCH, _STEPS, _OTHER = 0.65, 0.8, 0.9  # shares of the time at which the search, all steps, the other numerics end
_LOADER_SECONDS = 2.0
_MUCH_MORE = 5  # times the minutes, if a trial had too little time
_MIXED = ("16", "bf16")


@dataclass
class TrialReport:
    """The measurements and the recommendations."""

    memory: int  # bytes that a run may use
    device: str
    numerics: str
    precision: str
    buckets: list[Bucket] = field(default_factory=list)
    cost: MemoryCost | None = None
    advice: list[Recommendation] = field(default_factory=list)
    verified: Outcome | None = None  # the recommended batch with the longest clips
    predicted_peak: float | None = None  # of the recommended batch, in bytes
    other_precision: tuple[Outcome, Outcome] | None = None
    other_numerics: tuple[Outcome, Outcome] | None = None  # exact, fast
    workers: Workers | None = None
    findings: list[CheckResult] = field(default_factory=list)

    @property
    def overrides(self) -> list[str]:
        return [override for advice in self.advice for override in advice.overrides]

    @property
    def train_ds(self) -> dict[str, int]:
        """The recommended values of `model.train_ds`."""
        pairs = (override.removeprefix("model.train_ds.").split("=") for override in self.overrides)
        return {key: int(value) for key, value in pairs if "." not in key}


def run_trial(plan: RunPlan, facts: Facts, seconds: float, lengths: Sequence[float], progress: Progress) -> TrialReport:
    """Measure for about `seconds` at most; a measurement for which there was no time is missing in the report."""
    schedule = _Schedule(seconds, progress)
    settings: dict[str, Any] = OmegaConf.to_container(plan.cfg.model)  # type: ignore[assignment]
    device = "cuda" if plan.gpu else "cpu"
    free = _free_memory(plan)
    report = TrialReport(int(_USED * free), device, settings.get("numerics") or "exact", _precision(plan))
    tops = bucket_tops(plan.durations(), lengths, plan.train_ds.get("max_duration"))
    try:
        watched = report.memory if plan.gpu else int(_WATCHED * free)
        with TrialProcess(settings, device, watched, schedule.at(_STEPS)) as process:
            _measure_steps(plan, facts, report, process, tops, schedule)
        if report.buckets:
            _compare_numerics(settings, report, watched, schedule)
    except StartError as error:
        report.findings.append(CheckResult("trial", "problem", str(error)))
    except TrialError as error:
        report.findings.append(CheckResult("trial", "warning", f"a step failed: {error}"))
    if plan.data_is_usable and report.buckets:
        _measure_loading(plan, facts, settings, report, schedule)
    return report


class _Schedule:
    """The time of the trial, divided into shares."""

    def __init__(self, seconds: float, progress: Progress) -> None:
        self.began, self.seconds, self._progress = time.monotonic(), seconds, progress

    def at(self, share: float) -> float:
        return self.began + share * self.seconds

    def left_until(self, share: float) -> float:
        return self.at(share) - time.monotonic()

    def progress(self, text: str) -> None:
        self._progress(min(1.0, (time.monotonic() - self.began) / self.seconds), text)


def _measure_steps(
    plan: RunPlan, facts: Facts, report: TrialReport, process: TrialProcess, tops: Sequence[float], schedule: _Schedule
) -> None:
    schedule.progress("building the model")
    ends = _SEARCH

    def remaining() -> float:
        return schedule.left_until(ends)

    search = Search(process.measure, Limits(report.memory, plan.gpu), remaining, schedule.progress)
    buckets = search.run(tops, report.precision)
    ends = _STEPS
    if buckets[-1].fits(asked := batch_size(report, plan.train_ds, tops[-1])) is None:
        search.try_once(Trial(asked, tops[-1], report.precision))  # the configured batch matters most
        buckets = search.buckets(tops)
    report.cost = search.cost
    report.buckets = [bucket for bucket in buckets if bucket.outcomes or bucket.largest is not None]
    unknown = [f"{bucket.seconds:g} s" for bucket in buckets if bucket not in report.buckets]
    if unknown:
        found = f"no time for clips of {', '.join(unknown)}" if report.buckets else "the time was over before a step"
        more = f"Give it more: --minutes {_MUCH_MORE * schedule.seconds / 60:g}"
        report.findings.append(CheckResult("trial", "warning", found, more))
    fitting = list(itertools.takewhile(lambda bucket: bucket.largest != 0, buckets))
    utterances = len(plan.durations()) // plan.processes or None
    accumulate = int(OmegaConf.select(plan.cfg, "trainer.accumulate_grad_batches") or 1)
    advice = batch_advice(fitting, plan.train_ds, accumulate, utterances)
    if advice is None:
        if any(bucket.outcomes for bucket in report.buckets):
            report.findings.append(
                CheckResult("trial", "problem", "not even one clip fits into memory", "Try +size=small")
            )
        return
    report.advice.append(advice)
    if len(fitting) < len(buckets):
        found = f"clips of {buckets[len(fitting)].seconds:g} s do not fit into memory, even one by one"
        shorter = f"model.train_ds.max_duration={fitting[-1].seconds:g}, or a smaller size"
        report.findings.append(CheckResult("trial", "warning", found, shorter))
    _verify(plan, report, search, fitting[-1].seconds)
    if report.verified is not None and not report.verified.fits:  # the prediction was wrong
        report.buckets = search.buckets([bucket.seconds for bucket in report.buckets])
        known = search.buckets([bucket.seconds for bucket in fitting])
        report.advice = [batch_advice(known, plan.train_ds, accumulate, utterances) or advice]
    _compare_precisions(plan, facts, report, search)


def _verify(plan: RunPlan, report: TrialReport, search: Search, longest: float) -> None:
    """Measure the recommended batch with the longest clips, if it is expected to fit and there is time."""
    trial = Trial(batch_size(report, plan.train_ds, longest), longest, report.precision)
    report.predicted_peak = search.cost.peak(trial.batch_size, longest) if search.cost else None
    report.verified = search.try_once(trial)


def _compare_precisions(plan: RunPlan, facts: Facts, report: TrialReport, search: Search) -> None:
    """Measure the typical batch in mixed precision, if the hardware has it."""
    middle = typical(report.buckets)
    now = middle.useful if middle else None
    if now is None or report.precision != "32":
        return
    name = "bf16-mixed" if facts.bf16 else "16-mixed" if plan.gpu else None
    if name is None:
        report.advice.append(Recommendation((), "precision=32: this processor does not multiply bf16"))
        return
    other = search.try_once(Trial(now.trial.batch_size, now.trial.seconds, name))
    if other is not None:
        report.other_precision = (now, other)
        report.advice.append(precision_advice(now, other))


def _compare_numerics(settings: dict[str, Any], report: TrialReport, watched: int, schedule: _Schedule) -> None:
    """Measure the typical batch with the other numerics (`exact` or `fast`)."""
    middle = typical(report.buckets)
    now = middle.useful if middle else None
    if now is None or settings.get("compile") or schedule.left_until(_OTHER) < 3 * (now.seconds or 0.0):
        return
    other = "fast" if report.numerics == "exact" else "exact"
    schedule.progress(f"the typical batch with numerics={other}")
    with TrialProcess({**settings, "numerics": other}, report.device, watched, schedule.at(_OTHER)) as process:
        try:
            outcome = process.measure(now.trial)
        except OutOfTime:
            return
    report.other_numerics = (now, outcome) if other == "fast" else (outcome, now)


def _measure_loading(
    plan: RunPlan, facts: Facts, settings: dict[str, Any], report: TrialReport, schedule: _Schedule
) -> None:
    """Measure loading of the user's own data in the recommended batches, and choose the number of workers."""
    middle = typical(report.buckets)
    if middle is None:
        return
    step = _step_seconds(middle, batch_size(report, plan.train_ds, middle.seconds))
    batch = report.train_ds

    def measure(workers: int) -> Loading:
        schedule.progress(f"loading with {workers} workers")
        loader = load_train(settings, **batch, num_workers=workers, persistent_workers=False)
        return time_loader(loader, workers, _LOADER_SECONDS)

    cores = int(facts.usable_cores) // plan.processes
    most = max(1, min(8, cores - 1)) if plan.gpu else max(1, cores // 4)
    room = workers_with_room(plan, facts, most, **batch)
    try:
        report.workers = choose_workers(measure, step, most=room, remaining=lambda: schedule.left_until(1.0))
    except NestError as error:
        report.findings.append(CheckResult("data", "warning", str(error).strip().splitlines()[-1]))
        return
    report.advice.append(workers_advice(report.workers, plan.train_ds.get("num_workers") or 0, plan.gpu))
    if room < most and not report.workers.keeps_up:  # shared memory is what limits the workers
        _check_room(plan, facts, report, {**report.train_ds, "num_workers": most})
    else:
        _check_room(plan, facts, report, report.train_ds)


def _check_room(plan: RunPlan, facts: Facts, report: TrialReport, changes: dict[str, int]) -> None:
    """Check shared memory for the recommended values; the configured ones were checked before."""
    if changes:
        found = check_shared_memory(plan, facts, **changes)
        report.findings.extend(finding for finding in found if finding.state != "ok")


def batch_size(report: TrialReport, train_ds: dict[str, Any], seconds: float) -> int:
    """Return the number of clips of this length in the recommended batch, or in the configured one."""
    data = {**train_ds, **report.train_ds}
    if data.get("batch_duration") is not None:
        return max(1, int(float(data["batch_duration"]) // seconds))
    return int(data.get("batch_size") or 1)


def _step_seconds(bucket: Bucket, clips: int) -> float:
    """Estimate the step time of a batch of so many clips from the measured batch that is nearest."""
    fitting = [outcome for outcome in bucket.outcomes if outcome.fits]
    nearest = min(fitting, key=lambda outcome: abs(outcome.trial.batch_size - clips))
    return (nearest.seconds or 0.0) * clips / nearest.trial.batch_size


def _free_memory(plan: RunPlan) -> int:
    """Return the free bytes for one process; with several GPUs, DDP keeps a copy of the gradients on each."""
    if not plan.gpu:
        return available_memory() // plan.processes
    free = min(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
    return free - (plan.weight_bytes if plan.processes > 1 else 0)


def _precision(plan: RunPlan) -> str:
    """Return the precision of the trial: mixed if configured so, else 32."""
    name = str(OmegaConf.select(plan.cfg, "trainer.precision") or 32).removesuffix("-mixed")
    return f"{name}-mixed" if name in _MIXED else "32"
