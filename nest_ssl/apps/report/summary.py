"""What a report says about a run: whether it is active, its key figures, its verdict and its samples."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nest_ssl.apps.report.configuration import Scope, adjustments_of
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.health import Health, Signs, health_of, recent, signs_of
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.samples import SampleSet, newest_samples
from nest_ssl.config.machine import Adjustment
from nest_ssl.errors import NestError

State = Literal["running", "finished", "stopped", "silent"]
# A run's folder does not say whether the run is active, so the age of the newest value decides.
SILENCE_SECONDS = 600.0  # silence of a run that may be active: TensorBoard buffers values for 2 minutes
SILENCE_GAPS = 3.0  # times the longest gap of the newest start, which a validation may have caused
RECENT_SHARE = 0.5  # of the newest start, for the current speed
_COUNTED_WITH = "masked_share"  # versions of nest_ssl that log this at every step also log the counters


@dataclass(frozen=True)
class Status:
    """How far a run is; `silent` has logged nothing yet, and `total` is None if the run has no limit."""

    state: State
    step: int  # optimizer steps done
    total: int | None
    total_is_estimated: bool  # from the length of the epochs so far
    age: float | None  # seconds since the newest value
    patience: float  # seconds of silence after which a run counts as stopped
    steps_per_second: float | None

    @property
    def seconds_left(self) -> float | None:
        """The remaining time of an active run at its current speed."""
        if self.state != "running" or self.total is None or not self.steps_per_second:
            return None
        return max(self.total - self.step, 0) / self.steps_per_second


@dataclass(frozen=True)
class KeyFigure:
    """One key figure; `kind` says how it is printed, `better` which direction is good, if either is.

    `value` is None if the run did not log it, and NaN if its newest logged values are not finite. `scope` is what runs
    must have in common before one of them can be the better one.
    """

    name: str
    value: float | None
    kind: Literal["count", "number", "share"]
    better: Literal["lower", "higher"] | None = None
    scope: Scope | None = None

    def as_json(self) -> float | int | None:
        """Return a whole number for a count, and None for what was not logged or is not finite."""
        if self.value is None or not math.isfinite(self.value):
            return None
        return int(self.value) if self.kind == "count" else self.value


@dataclass(frozen=True)
class RunReport:
    """A run with what a report says about it."""

    run: Run
    status: Status
    signs: Signs
    health: Health
    figures: list[KeyFigure]  # the most important first
    adjusted: dict[str, Adjustment]  # by key: what was adjusted to the machine

    @property
    def samples(self) -> SampleSet | NestError | None:
        """The newest samples, or why they cannot be read; read for pages only."""
        try:
            return newest_samples(self.run.folder)
        except NestError as error:
            return error

    def as_dict(self) -> dict[str, Any]:
        """Return key figures and verdict for JSON."""
        status, health = self.status, self.health
        return {
            "run": str(self.run.folder),
            "state": status.state,
            "total_steps": status.total,
            "seconds_left": status.seconds_left,
            "seconds_since_newest_number": status.age,
            "health": health.state,
            "verdict": health.word,
            "findings": [{"state": of.state, "finding": of.key, **of.values} for of in health.findings],
            "figures": {figure.name: figure.as_json() for figure in self.figures},
        }


def gather(runs: Sequence[Run]) -> list[RunReport]:
    """Return the reports of these runs, as of now."""
    now = time.time()
    return [_report(run, now) for run in runs]


def _report(run: Run, now: float) -> RunReport:
    status = status_of(run, now)
    signs = signs_of(run, status.step)
    return RunReport(run, status, signs, health_of(signs), key_figures(run, status), adjustments_of(run))


def status_of(run: Run, now: float) -> Status:
    """Return the status from the newest logged value, the configured limits and the names of the checkpoints."""
    history = run.history
    logged = 0 if history.last_step is None else history.last_step + 1  # Lightning counts from 0
    step = max(logged, run.checkpoint_step)
    total, estimated = _total(run)
    steps, times = _newest_start(run)
    patience = max([SILENCE_SECONDS, *(SILENCE_GAPS * np.diff(times)).tolist()])
    age = None if history.last_time is None else max(now - history.last_time, 0.0)
    every = run.whole_setting("trainer.log_every_n_steps") or 50
    if total is not None and step >= (total - every if estimated else total):
        state: State = "finished"
        total, estimated = step if estimated else total, False  # the end is known now
    elif age is None or age > patience:
        state = "stopped"
    else:
        state = "running" if logged else "silent"
    return Status(state, step, total, estimated, age, patience, _speed(steps, times))


def _total(run: Run) -> tuple[int | None, bool]:
    """Return the steps that the configuration allows, and whether they are an estimate."""
    steps, epochs = run.whole_setting("trainer.max_steps"), run.whole_setting("trainer.max_epochs")
    bound = steps if steps is not None and steps > 0 else None
    length = _epoch_length(run.history.get("epoch").finite)
    if epochs is None or epochs < 1 or length is None:
        return bound, False
    by_epochs = math.ceil(length * epochs)
    return (bound, False) if bound is not None and bound <= by_epochs else (by_epochs, True)


def _epoch_length(epochs: Series) -> float | None:
    """Return the steps of an epoch, from the last change of its number; None in the first epoch."""
    changes = np.flatnonzero(np.diff(epochs.values) > 0)
    if not len(changes) or epochs.values[changes[-1] + 1] < 1:
        return None
    before, after = epochs.steps[changes[-1]], epochs.steps[changes[-1] + 1]
    return float((before + after) / 2 + 1) / float(epochs.values[changes[-1] + 1])


def _newest_start(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of the newest start, from the tag that has most values, and their times."""
    starts = run.history.starts
    if not starts or starts[-1].first_step is None:
        return np.empty(0), np.empty(0)
    longest = max(run.history.series.values(), key=len)
    newest = longest.times >= starts[-1].time
    return longest.steps[newest], longest.times[newest]


def _speed(steps: np.ndarray, times: np.ndarray) -> float | None:
    """Return the recent steps per second, including validations and checkpoints."""
    if len(steps) < 2:
        return None
    first = int((1 - RECENT_SHARE) * (len(steps) - 1))
    seconds = float(times[-1] - times[first])
    return float(steps[-1] - steps[first]) / seconds if seconds > 0 else None


def key_figures(run: Run, status: Status) -> list[KeyFigure]:
    """Return the figures, the most important first."""
    get = run.history.get
    val_loss = get("val_loss")
    best = min(val_loss.finite.values.tolist(), default=None)
    return [
        KeyFigure("step", status.step, "count"),
        KeyFigure("epoch", get("epoch").last_finite, "count"),
        KeyFigure("train_loss", recent(get("train_loss")), "number", "lower", "training"),
        KeyFigure("val_loss", _newest(val_loss), "number", "lower", "validation"),
        KeyFigure("best_val_loss", best, "number", "lower", "validation"),
        KeyFigure("train_accuracy", recent(get("train_accuracy")), "share", "higher", "training"),
        KeyFigure("val_accuracy", _newest(get("val_accuracy")), "share", "higher", "validation"),
        KeyFigure("audio_seconds_per_second", recent(get("audio_seconds_per_second")), "number", "higher"),
        KeyFigure("steps_per_second", status.steps_per_second, "number"),
        KeyFigure("data_wait_share", recent(get("data_wait_share")), "share", "lower"),
        KeyFigure("padding_efficiency", recent(get("padding_efficiency")), "share", "higher"),
        KeyFigure("starts", len(run.history.starts), "count"),
        KeyFigure("skipped_audio", total_of(run, "skipped_audio"), "count", "lower"),
        KeyFigure("nonfinite_steps", total_of(run, "nonfinite_steps"), "count", "lower"),
    ]


def best_value(figures: Sequence[KeyFigure]) -> float | None:
    """Return the best value of one figure of several runs; None if they are equal or neither direction is better."""
    values = [figure.value for figure in figures if figure.value is not None and math.isfinite(figure.value)]
    if len(set(values)) < 2 or figures[0].better is None:
        return None
    return min(values) if figures[0].better == "lower" else max(values)


def total_of(run: Run, counter: str) -> float | None:
    """Return a counter, which is logged only when it changes: 0 if it never was, None if the run logs no counters."""
    total = run.history.get(counter).last_finite
    return 0.0 if total is None and len(run.history.get(_COUNTED_WITH)) else total


def _newest(series: Series) -> float | None:
    """Return the newest value, NaN if it is not finite."""
    if not len(series):
        return None
    return float(series.values[-1]) if np.isfinite(series.values[-1]) else math.nan
