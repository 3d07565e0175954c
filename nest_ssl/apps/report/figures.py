"""The key figures of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.apps.report.configuration import Scope
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.status import Status

# The present value is the mean of the newest logged values, because single batches differ by more than a day's
# progress; of a short run only of its last fifth, because its beginning would hide what it has learnt since.
RECENT_POINTS = 50
RECENT_PART = 5  # one in so many
_COUNTED_WITH = "masked_share"  # versions of nest_ssl that log this at every step also log the counters


@dataclass(frozen=True)
class KeyFigure:
    """One key figure; `kind` says how it is printed, `better` which direction is good, if either is.

    `value` is None if the run did not log it, and NaN if its newest logged values are not finite. `scope` is what runs
    must have in common before one of them can be the better one.
    """

    name: str
    value: float | None
    kind: str  # count, number, share
    better: str = ""  # lower, higher
    scope: Scope | None = None

    def as_json(self) -> float | int | None:
        """Return a whole number for a count, and None for what was not logged or is not finite."""
        if self.value is None or not math.isfinite(self.value):
            return None
        return int(self.value) if self.kind == "count" else self.value


def key_figures(run: Run, status: Status) -> list[KeyFigure]:
    """Return the figures, the most important first."""
    get = run.history.get
    val_losses = get("val_loss").finite.values
    best = float(val_losses.min()) if len(val_losses) else None
    return [
        KeyFigure("step", status.step, "count"),
        KeyFigure("epoch", get("epoch").last_finite, "count"),
        KeyFigure("train_loss", recent(get("train_loss")), "number", "lower", "training"),
        KeyFigure("val_loss", _newest(get("val_loss")), "number", "lower", "validation"),
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
    if len(set(values)) < 2 or not figures[0].better:
        return None
    return min(values) if figures[0].better == "lower" else max(values)


def recent(series: Series) -> float | None:
    """Return the mean of the newest values that are finite; NaN if none of them is, None without values."""
    if not len(series):
        return None
    newest = series.values[-min(RECENT_POINTS, max(1, len(series) // RECENT_PART)) :]
    newest = newest[np.isfinite(newest)]
    return float(np.mean(newest)) if len(newest) else math.nan


def _newest(series: Series) -> float | None:
    """Return the newest value, NaN if it is not finite."""
    if not len(series):
        return None
    return float(series.values[-1]) if np.isfinite(series.values[-1]) else math.nan


def total_of(run: Run, counter: str) -> float | None:
    """Return a counter, which is logged only when it changes: 0 if it never was, None if the run logs no counters."""
    total = run.history.get(counter).last_finite
    return 0.0 if total is None and len(run.history.get(_COUNTED_WITH)) else total
