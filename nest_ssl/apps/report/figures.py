"""The numbers that one compares runs by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nest_ssl.apps.report.comparable import Scope
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.status import Status

# Logged numbers that "now" is the mean of: single batches differ by more than a day's progress. Of a short run only the
# last part: its beginning would hide what it has learnt since.
RECENT_POINTS = 50
RECENT_PART = 5  # one in so many
_COUNTED_WITH = "masked_share"  # logged at every step by the versions of nest_ssl that count, and by nobody else


@dataclass(frozen=True)
class Figure:
    """One number; `kind` tells how people read it, `better` which way is good if either is.

    `value` is None where the run did not log it, and NaN where the newest of what it logged is not finite. `scope` is
    what runs must have in common before one of them can be the better one.
    """

    name: str
    value: float | None
    kind: str  # count, number, share, rate
    better: str = ""  # lower, higher
    scope: Scope | None = None


def key_figures(run: Run, status: Status) -> list[Figure]:
    """In the order of interest; None for what the run did not log."""
    get = run.history.get
    return [
        Figure("step", status.step, "count"),
        Figure("epoch", _of(get("epoch"), lambda of: of.last), "count"),
        Figure("train_loss", recent(get("train_loss")), "number", "lower", "training"),
        Figure("val_loss", _newest(get("val_loss")), "number", "lower", "validation"),
        Figure("best_val_loss", _of(get("val_loss"), _lowest), "number", "lower", "validation"),
        Figure("train_accuracy", recent(get("train_accuracy")), "share", "higher", "training"),
        Figure("val_accuracy", _newest(get("val_accuracy")), "share", "higher", "validation"),
        Figure("audio_seconds_per_second", recent(get("audio_seconds_per_second")), "rate", "higher"),
        Figure("steps_per_second", status.steps_per_second, "rate"),
        Figure("data_wait_share", recent(get("data_wait_share")), "share", "lower"),
        Figure("padding_efficiency", recent(get("padding_efficiency")), "share", "higher"),
        Figure("starts", len(run.history.starts), "count"),
        Figure("skipped_audio", total_of(run, "skipped_audio"), "count", "lower"),
        Figure("nonfinite_steps", total_of(run, "nonfinite_steps"), "count", "lower"),
    ]


def best_value(figures: Sequence[Figure]) -> float | None:
    """The best of one figure of several runs; None where none is better than another, or nobody can tell."""
    values = [figure.value for figure in figures if figure.value is not None and math.isfinite(figure.value)]
    if len(set(values)) < 2 or not figures[0].better:
        return None
    return min(values) if figures[0].better == "lower" else max(values)


def recent(series: Series | None) -> float | None:
    """The mean of the finite ones among the newest numbers: NaN if none of them is, whatever was before."""
    if series is None or not len(series):
        return None
    newest = series.values[-min(RECENT_POINTS, max(1, len(series) // RECENT_PART)) :]
    newest = newest[np.isfinite(newest)]
    return float(np.mean(newest)) if len(newest) else math.nan


def as_numbers(figures: list[Figure]) -> dict[str, Any]:
    """For machines; counts are whole, and null is what was not logged or is not finite."""
    return {figure.name: _as_number(figure) for figure in figures}


def _as_number(figure: Figure) -> float | int | None:
    if figure.value is None or not math.isfinite(figure.value):
        return None
    return int(figure.value) if figure.kind == "count" else figure.value


def _newest(series: Series | None) -> float | None:
    """The newest number, NaN if it is not finite."""
    if series is None or not len(series):
        return None
    return series.last if math.isfinite(series.last) else math.nan


def _of(series: Series | None, number: Callable[[Series], float]) -> float | None:
    """Of the finite numbers, if there are any."""
    finite = None if series is None else series.finite
    return None if finite is None or not len(finite) else number(finite)


def _lowest(series: Series) -> float:
    return float(series.values.min())


def total_of(run: Run, counter: str) -> float | None:
    """A counter that is logged only when it moves: 0 without a number, but None if the run logs no such counters."""
    total = _of(run.history.get(counter), lambda of: of.last)
    return 0.0 if total is None and run.history.get(_COUNTED_WITH) is not None else total
