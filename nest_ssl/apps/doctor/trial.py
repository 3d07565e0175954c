"""The trial: measure steps and data loading of a configuration in bounded time, and recommend values."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from nest_ssl.apps.doctor import CheckResult, State
from nest_ssl.apps.doctor.machine import Facts
from nest_ssl.apps.doctor.plan import RunPlan, check_shared_memory, load_train, workers_with_room
from nest_ssl.apps.doctor.recommend import (
    Loading,
    Recommendation,
    Workers,
    batch_advice,
    choose_workers,
    precision_advice,
    typical,
    workers_advice,
)
from nest_ssl.apps.doctor.search import Bucket, MemoryCost, Search, clip_lengths
from nest_ssl.apps.doctor.steps import Outcome, StartError, TrialError, TrialProcess
from nest_ssl.errors import NestError
from nest_ssl.memory import available_memory

Progress = Callable[[float, str], None]  # share of the time that has passed, and what is being measured
_USED, _WATCHED = 0.8, 0.9  # shares of the free memory: for the recommended batch, and at which the process ends itself
_SEARCH, _STEPS = 0.65, 0.85  # shares of the time at which the search and all steps end
_LOADER_SECONDS, _FEWEST_BATCHES, _MOST_BATCHES = 2.0, 3, 24  # for each number of workers
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

    def as_dict(self) -> dict[str, Any]:
        """Return the report for `--json`; sizes in bytes, times in seconds."""
        return {
            "device": self.device,
            "memory": self.memory,
            "numerics": self.numerics,
            "precision": self.precision,
            "buckets": [
                {
                    "seconds": bucket.seconds,
                    "largest": bucket.largest,
                    "largest_is_measured": bucket.measured,
                    "useful": bucket.useful.trial.batch_size if bucket.useful else None,
                    "speed_stopped_growing": bucket.saturated,
                    "measured": [{**asdict(one), "audio_seconds_per_second": one.speed} for one in bucket.outcomes],
                }
                for bucket in self.buckets
            ],
            "workers": self.workers and asdict(self.workers),
            "recommended": [asdict(advice) for advice in self.advice],
            "overrides": self.overrides,
            "findings": [asdict(finding) for finding in self.findings],
        }


def run_trial(plan: RunPlan, facts: Facts, seconds: float, lengths: Sequence[float], progress: Progress) -> TrialReport:
    """Measure for about `seconds` at most; a measurement for which there was no time is missing in the report."""
    return _TrialRun(plan, facts, seconds, progress).run(lengths)


class _TrialRun:
    """One trial; its time is divided into shares."""

    def __init__(self, plan: RunPlan, facts: Facts, seconds: float, progress: Progress) -> None:
        self.plan, self.facts, self.seconds, self._progress = plan, facts, seconds, progress
        self.began = time.monotonic()
        self.free = _free_memory(plan)
        self.report = TrialReport(
            memory=int(_USED * self.free),
            device="cuda" if plan.gpu else "cpu",
            numerics=plan.settings.get("numerics") or "exact",
            precision=_precision(plan),
        )

    def run(self, lengths: Sequence[float]) -> TrialReport:
        plan, report = self.plan, self.report
        self.progress("building the model")
        lengths = clip_lengths(plan.durations(), lengths, plan.train_ds.get("max_duration"))
        watched = report.memory if plan.gpu else int(_WATCHED * self.free)
        try:
            with TrialProcess(plan.settings, report.device, watched, self.deadline(_STEPS)) as process:
                self.measure_steps(process, lengths)
        except StartError as error:
            self.add_finding("problem", str(error))
        except TrialError as error:
            self.add_finding("warning", f"a step failed: {error}")
        if plan.can_use("data") and report.buckets:
            self.measure_loading()
        return report

    def deadline(self, share: float) -> float:
        return self.began + share * self.seconds

    def remaining(self, share: float) -> float:
        return self.deadline(share) - time.monotonic()

    def progress(self, text: str) -> None:
        self._progress(min(1.0, (time.monotonic() - self.began) / self.seconds), text)

    def add_finding(self, state: State, found: str, advice: str = "") -> None:
        self.report.findings.append(CheckResult("trial", state, found, advice))

    def measure_steps(self, process: TrialProcess, lengths: Sequence[float]) -> None:
        """Search what fits and what is fast, recommend a batch, and measure it with the longest clips."""
        report = self.report
        search = Search(
            measure=process.measure,
            memory=report.memory,
            may_overflow=self.plan.gpu,
            remaining=lambda: self.remaining(_SEARCH),
            progress=self.progress,
            precision=report.precision,
        )
        buckets = search.run(lengths)
        search.remaining = lambda: self.remaining(_STEPS)
        if (asked := self.batch_size(lengths[-1])) > buckets[-1].safe:
            search.try_once(asked, lengths[-1])  # the configured batch matters most
            buckets = search.buckets(lengths)
        report.cost = search.cost
        report.buckets = [bucket for bucket in buckets if bucket.outcomes or bucket.largest is not None]
        unknown = [f"{bucket.seconds:g} s" for bucket in buckets if bucket not in report.buckets]
        if unknown:
            no_time = f"no time for clips of {', '.join(unknown)}"
            found = no_time if report.buckets else "the time was over before a step"
            self.add_finding("warning", found, f"Give it more: --minutes {_MUCH_MORE * self.seconds / 60:g}")
        fitting = list(itertools.takewhile(lambda bucket: bucket.largest != 0, buckets))
        advice = self.advise_batch(fitting)
        if advice is None:
            if any(bucket.outcomes for bucket in report.buckets):
                self.add_finding("problem", "not even one clip fits into memory", "Try +size=small")
            return
        report.advice.append(advice)
        if len(fitting) < len(buckets):
            found = f"clips of {buckets[len(fitting)].seconds:g} s do not fit into memory, even one by one"
            self.add_finding(
                "warning", found, f"model.train_ds.max_duration={fitting[-1].seconds:g}, or a smaller size"
            )
        longest = fitting[-1].seconds
        report.verified = search.try_once(self.batch_size(longest), longest)
        if report.verified is not None and not report.verified.fits:  # the prediction was wrong
            report.buckets = search.buckets([bucket.seconds for bucket in report.buckets])
            known = search.buckets([bucket.seconds for bucket in fitting])
            report.advice = [self.advise_batch(known) or advice]
        self.compare_precisions(search)

    def advise_batch(self, buckets: Sequence[Bucket]) -> Recommendation | None:
        accumulate = int(OmegaConf.select(self.plan.cfg, "trainer.accumulate_grad_batches") or 1)
        utterances = len(self.plan.durations()) // self.plan.processes or None
        return batch_advice(buckets, self.plan.train_ds, accumulate, utterances)

    def compare_precisions(self, search: Search) -> None:
        """Measure the typical batch in mixed precision, if the hardware has it."""
        middle = typical(self.report.buckets)
        now = middle.useful if middle else None
        if now is None or self.report.precision != "32":
            return
        machine = self.facts.machine
        bf16 = machine.gpu_bf16 if self.plan.gpu else machine.cpu_bf16
        name = "bf16-mixed" if bf16 else "16-mixed" if self.plan.gpu else None
        if name is None:
            self.report.advice.append(Recommendation((), "precision=32: this processor does not multiply bf16"))
            return
        other = search.try_once(now.trial.batch_size, now.trial.seconds, name)
        if other is not None:
            self.report.advice.append(precision_advice(now, other))

    def measure_loading(self) -> None:
        """Measure loading of the user's own data in the recommended batches, and choose the number of workers."""
        plan, report = self.plan, self.report
        middle = typical(report.buckets)
        if middle is None:
            return
        step = _step_seconds(middle, self.batch_size(middle.seconds))
        batch = report.train_ds

        def measure(workers: int) -> Loading:
            self.progress(f"loading with {workers} workers")
            loader = load_train(plan.settings, **batch, num_workers=workers, persistent_workers=False)
            return time_loader(loader, workers, _LOADER_SECONDS)

        cores = int(self.facts.usable_cores) // plan.processes
        most = max(1, min(8, cores - 1)) if plan.gpu else max(1, cores // 4)
        room = workers_with_room(plan, self.facts, most, **batch)
        try:
            report.workers = choose_workers(measure, step, most=room, remaining=lambda: self.remaining(1.0))
        except NestError as error:
            report.findings.append(CheckResult("data", "warning", str(error).strip().splitlines()[-1]))
            return
        report.advice.append(workers_advice(report.workers, plan.train_ds.get("num_workers") or 0, plan.gpu))
        changes = report.train_ds
        if room < most and not report.workers.keeps_up:  # shared memory is what limits the workers
            changes = {**changes, "num_workers": most}
        if changes:  # the configured values were checked before
            found = check_shared_memory(plan, self.facts, **changes)
            report.findings.extend(finding for finding in found if finding.state != "ok")

    def batch_size(self, seconds: float) -> int:
        """Return the number of clips of this length in the recommended batch, or in the configured one."""
        data = {**self.plan.train_ds, **self.report.train_ds}
        if data.get("batch_duration") is not None:
            return max(1, int(float(data["batch_duration"]) // seconds))
        return int(data.get("batch_size") or 1)


def time_loader(loader: DataLoader[Any], workers: int, seconds: float) -> Loading:
    """Time batches of the loader for about `seconds`, without the first, which includes the start of the workers.

    If the first batch is the only one, its time counts.
    """
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that the data draws from
    began = time.perf_counter()
    batches = iter(loader)
    next(batches, None)
    ahead = workers * (loader.prefetch_factor or 2) if workers else 0  # prefetched while the first was awaited
    arrived = [time.perf_counter()]
    for _ in itertools.islice(batches, _MOST_BATCHES + ahead):
        arrived.append(time.perf_counter())
        if len(arrived) > _FEWEST_BATCHES + ahead and arrived[-1] - arrived[0] > seconds:
            break
    del batches
    if len(arrived) == 1:
        return Loading(workers, arrived[0] - began)
    arrived = arrived[min(ahead, len(arrived) // 2) :]
    return Loading(workers, (arrived[-1] - arrived[0]) / max(1, len(arrived) - 1))


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
