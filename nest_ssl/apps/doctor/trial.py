"""The measured part: batch, precision and loader processes for one configuration on this machine, in bounded time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import OmegaConf

from nest_ssl.apps.doctor.bench import Bench, OutOfTime, StartError, TrialError
from nest_ssl.apps.doctor.cost import MemoryCost
from nest_ssl.apps.doctor.finding import Finding
from nest_ssl.apps.doctor.loading import Loading, Workers, choose_workers, time_loader
from nest_ssl.apps.doctor.machine_facts import Facts
from nest_ssl.apps.doctor.plan import RunPlan, load_train
from nest_ssl.apps.doctor.plan_checks import check_shared_memory, workers_with_room
from nest_ssl.apps.doctor.recommend import Advice, batch_advice, precision_advice, typical, workers_advice
from nest_ssl.apps.doctor.search import Bucket, Limits, Search, bucket_tops
from nest_ssl.apps.doctor.steps import Outcome, Trial
from nest_ssl.errors import NestError
from nest_ssl.memory import available_memory

Tell = Callable[[float, str], None]  # the share of the time that is over, and what is being measured
_USED, _WATCHED = 0.8, 0.9  # of the memory that is free: by what is recommended, and at which the trial ends itself
_SEARCH, _STEPS, _OTHER = 0.65, 0.8, 0.9  # of the time, when the search, all steps, and the other numerics end
_LOADER_SECONDS = 2.0
_MUCH_MORE = 5  # times the minutes, for a trial that did not get far
_MIXED = ("16", "bf16")


@dataclass
class TrialReport:
    """All that was measured, and what to make of it."""

    memory: int  # bytes that a run may use
    device: str
    numerics: str
    precision: str
    buckets: list[Bucket] = field(default_factory=list)
    cost: MemoryCost | None = None
    advice: list[Advice] = field(default_factory=list)
    verified: Outcome | None = None  # the recommended batch, of the longest clips
    predicted_peak: float | None = None  # of the same
    other_precision: tuple[Outcome, Outcome] | None = None
    other_numerics: tuple[Outcome, Outcome] | None = None  # exact, fast
    workers: Workers | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def overrides(self) -> list[str]:
        return [override for advice in self.advice for override in advice.overrides]

    @property
    def train_ds(self) -> dict[str, int]:
        """Those of the overrides that change the loader."""
        pairs = (override.removeprefix("model.train_ds.").split("=") for override in self.overrides)
        return {key: int(value) for key, value in pairs if "." not in key}


def run_trial(plan: RunPlan, facts: Facts, seconds: float, lengths: Sequence[float], tell: Tell) -> TrialReport:
    """Measure for at most about so many seconds; what there was no time for is missing from the report."""
    clock = _Clock(seconds, tell)
    settings: dict[str, Any] = OmegaConf.to_container(plan.cfg.model)  # type: ignore[assignment]
    device = "cuda" if plan.gpu else "cpu"
    free = _free_memory(plan)
    report = TrialReport(int(_USED * free), device, settings.get("numerics") or "exact", _precision(plan))
    tops = bucket_tops(plan.durations(), lengths, plan.train_ds.get("max_duration"))
    try:
        watched = report.memory if plan.gpu else int(_WATCHED * free)
        with Bench(settings, device, watched, clock.at(_STEPS)) as bench:
            _measure_steps(plan, facts, report, bench, tops, clock)
        if report.buckets:
            _compare_numerics(settings, report, watched, clock)
    except StartError as error:
        report.findings.append(Finding("trial", "problem", str(error)))
    except TrialError as error:
        report.findings.append(Finding("trial", "warning", f"a step failed: {error}"))
    if plan.data_is_usable and report.buckets:
        _measure_loading(plan, facts, settings, report, clock)
    return report


class _Clock:
    """Time of the trial as shares of all of it."""

    def __init__(self, seconds: float, tell: Tell) -> None:
        self.began, self.seconds, self._tell = time.monotonic(), seconds, tell

    def at(self, share: float) -> float:
        return self.began + share * self.seconds

    def left_until(self, share: float) -> float:
        return self.at(share) - time.monotonic()

    def tell(self, text: str) -> None:
        self._tell(min(1.0, (time.monotonic() - self.began) / self.seconds), text)


def _measure_steps(
    plan: RunPlan, facts: Facts, report: TrialReport, bench: Bench, tops: Sequence[float], clock: _Clock
) -> None:
    clock.tell("building the model")
    ends = _SEARCH

    def remaining() -> float:
        return clock.left_until(ends)

    search = Search(bench.measure, Limits(report.memory, plan.gpu), remaining, clock.tell)
    buckets = search.run(tops, report.precision)
    ends = _STEPS
    if buckets[-1].fits(asked := batch_size(report, plan.train_ds, tops[-1])) is None:
        search.try_once(Trial(asked, tops[-1], report.precision))  # what matters most, in the time that is left
        buckets = search.buckets(tops)
    report.cost = search.cost
    report.buckets = [bucket for bucket in buckets if bucket.outcomes or bucket.largest is not None]
    unknown = [f"{bucket.seconds:g} s" for bucket in buckets if bucket not in report.buckets]
    if unknown:
        found = f"no time for clips of {', '.join(unknown)}" if report.buckets else "the time was over before a step"
        more = f"Give it more: --minutes {_MUCH_MORE * clock.seconds / 60:g}"
        report.findings.append(Finding("trial", "warning", found, more))
    fitting = list(itertools.takewhile(lambda bucket: bucket.largest != 0, buckets))
    utterances = len(plan.durations()) // plan.processes or None
    accumulate = int(OmegaConf.select(plan.cfg, "trainer.accumulate_grad_batches") or 1)
    advice = batch_advice(fitting, plan.train_ds, accumulate, utterances)
    if advice is None:
        if any(bucket.outcomes for bucket in report.buckets):
            report.findings.append(Finding("trial", "problem", "not even one clip fits into memory", "Try +size=small"))
        return
    report.advice.append(advice)
    if len(fitting) < len(buckets):
        found = f"clips of {buckets[len(fitting)].seconds:g} s do not fit into memory, even one by one"
        shorter = f"model.train_ds.max_duration={fitting[-1].seconds:g}, or a smaller size"
        report.findings.append(Finding("trial", "warning", found, shorter))
    _verify(plan, report, search, fitting[-1].seconds)
    if report.verified is not None and not report.verified.fits:  # a prediction was wrong: what was measured counts
        report.buckets = search.buckets([bucket.seconds for bucket in report.buckets])
        known = search.buckets([bucket.seconds for bucket in fitting])
        report.advice = [batch_advice(known, plan.train_ds, accumulate, utterances) or advice]
    _compare_precisions(plan, facts, report, search)


def _verify(plan: RunPlan, report: TrialReport, search: Search, longest: float) -> None:
    """A step of the recommended batch with the longest clips, if it is safe and there is time."""
    trial = Trial(batch_size(report, plan.train_ds, longest), longest, report.precision)
    report.predicted_peak = search.cost.peak(trial.batch_size, longest) if search.cost else None
    report.verified = search.try_once(trial)


def _compare_precisions(plan: RunPlan, facts: Facts, report: TrialReport, search: Search) -> None:
    """The other precision that this hardware has, on the typical batch."""
    middle = typical(report.buckets)
    now = middle.useful if middle else None
    if now is None or report.precision != "32":
        return
    name = "bf16-mixed" if facts.bf16 else "16-mixed" if plan.gpu else None
    if name is None:
        report.advice.append(Advice((), "precision=32: this processor does not multiply bf16"))
        return
    other = search.try_once(Trial(now.trial.batch_size, now.trial.seconds, name))
    if other is not None:
        report.other_precision = (now, other)
        report.advice.append(precision_advice(now, other))


def _compare_numerics(settings: dict[str, Any], report: TrialReport, watched: int, clock: _Clock) -> None:
    """The typical batch once more, by the other of `exact` and `fast`."""
    middle = typical(report.buckets)
    now = middle.useful if middle else None
    if now is None or settings.get("compile") or clock.left_until(_OTHER) < 3 * (now.seconds or 0.0):
        return
    other = "fast" if report.numerics == "exact" else "exact"
    clock.tell(f"the same with numerics={other}")
    with Bench({**settings, "numerics": other}, report.device, watched, clock.at(_OTHER)) as bench:
        try:
            outcome = bench.measure(now.trial)
        except OutOfTime:
            return
    report.other_numerics = (now, outcome) if other == "fast" else (outcome, now)


def _measure_loading(plan: RunPlan, facts: Facts, settings: dict[str, Any], report: TrialReport, clock: _Clock) -> None:
    """The user's own data, in the batches that are recommended."""
    middle = typical(report.buckets)
    if middle is None:
        return
    step = _step_seconds(middle, batch_size(report, plan.train_ds, middle.seconds))
    batch = report.train_ds

    def measure(workers: int) -> Loading:
        clock.tell(f"loading with {workers} processes")
        loader = load_train(settings, **batch, num_workers=workers, persistent_workers=False)
        return time_loader(loader, workers, _LOADER_SECONDS)

    cores = int(facts.usable_cores) // plan.processes
    most = max(1, min(8, cores - 1)) if plan.gpu else max(1, cores // 4)
    room = workers_with_room(plan, facts, most, **batch)
    try:
        report.workers = choose_workers(measure, step, most=room, remaining=lambda: clock.left_until(1.0))
    except NestError as error:
        report.findings.append(Finding("data", "warning", str(error).strip().splitlines()[-1]))
        return
    report.advice.append(workers_advice(report.workers, plan.train_ds.get("num_workers") or 0, plan.gpu))
    if room < most and not report.workers.keeps_up:  # more would be tried if there were room for them
        _check_room(plan, facts, report, {**report.train_ds, "num_workers": most})
    else:
        _check_room(plan, facts, report, report.train_ds)


def _check_room(plan: RunPlan, facts: Facts, report: TrialReport, changes: dict[str, int]) -> None:
    """Shared memory once more, for what is recommended; what is configured was looked at before."""
    if changes:
        found = check_shared_memory(plan, facts, **changes)
        report.findings.extend(finding for finding in found if finding.state != "ok")


def batch_size(report: TrialReport, train_ds: dict[str, Any], seconds: float) -> int:
    """Clips of this length in the batch that is recommended, or kept."""
    data = {**train_ds, **report.train_ds}
    if data.get("batch_duration") is not None:
        return max(1, int(float(data["batch_duration"]) // seconds))
    return int(data.get("batch_size") or 1)


def _step_seconds(bucket: Bucket, clips: int) -> float:
    """Of a batch of so many clips, by the measured one that is nearest."""
    fitting = [outcome for outcome in bucket.outcomes if outcome.fits]
    nearest = min(fitting, key=lambda outcome: abs(outcome.trial.batch_size - clips))
    return (nearest.seconds or 0.0) * clips / nearest.trial.batch_size


def _free_memory(plan: RunPlan) -> int:
    """Bytes for one process of the run; several on GPUs each keep a copy of the gradients to exchange them."""
    if not plan.gpu:
        return available_memory() // plan.processes
    free = min(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
    return free - (plan.weight_bytes if plan.processes > 1 else 0)


def _precision(plan: RunPlan) -> str:
    """As trials name them; others than these are measured in single precision."""
    name = str(OmegaConf.select(plan.cfg, "trainer.precision") or 32).removesuffix("-mixed")
    return f"{name}-mixed" if name in _MIXED else "32"
