"""The numbers that one compares runs by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nest_ssl.report.events import Series
from nest_ssl.report.run import Run
from nest_ssl.report.status import Status

# Logged numbers that "now" is the mean of: single batches differ by more than a day's progress. Of a short run only the
# last part: its beginning would hide what it has learnt since.
RECENT_POINTS = 50
RECENT_PART = 5  # one in so many


@dataclass(frozen=True)
class Figure:
    """One number; `kind` tells how people read it, `better` which way is good if either is."""

    name: str
    value: float | None
    kind: str  # count, number, share, rate
    better: str = ""  # lower, higher


def key_figures(run: Run, status: Status) -> list[Figure]:
    """In the order of interest; None for what the run did not log."""
    get = run.history.get
    return [
        Figure("step", status.step, "count"),
        Figure("epoch", _of(get("epoch"), lambda of: of.last), "count"),
        Figure("train_loss", recent(get("train_loss")), "number", "lower"),
        Figure("val_loss", _of(get("val_loss"), lambda of: of.last), "number", "lower"),
        Figure("best_val_loss", _of(get("val_loss"), lambda of: float(of.values.min())), "number", "lower"),
        Figure("train_accuracy", recent(get("train_accuracy")), "share", "higher"),
        Figure("val_accuracy", _of(get("val_accuracy"), lambda of: of.last), "share", "higher"),
        Figure("audio_seconds_per_second", recent(get("audio_seconds_per_second")), "rate", "higher"),
        Figure("steps_per_second", status.steps_per_second, "rate"),
        Figure("data_wait_share", recent(get("data_wait_share")), "share", "lower"),
        Figure("padding_efficiency", recent(get("padding_efficiency")), "share", "higher"),
        Figure("starts", len(run.history.starts), "count"),
        Figure("skipped_audio", _total_of(get("skipped_audio")), "count", "lower"),
        Figure("nonfinite_steps", _total_of(get("nonfinite_steps")), "count", "lower"),
    ]


def recent(series: Series | None) -> float | None:
    """The mean of the newest numbers."""
    return _of(series, lambda of: float(np.mean(of.values[-min(RECENT_POINTS, max(1, len(of) // RECENT_PART)) :])))


def as_numbers(figures: list[Figure]) -> dict[str, Any]:
    """For machines; counts are whole."""
    return {
        figure.name: figure.value if figure.value is None or figure.kind != "count" else int(figure.value)
        for figure in figures
    }


def _of(series: Series | None, number: Callable[[Series], float]) -> float | None:
    """Of the finite numbers, if there are any."""
    finite = None if series is None else series.finite
    return None if finite is None or not len(finite) else number(finite)


def _total_of(series: Series | None) -> float:
    """A counter that is logged only when it moves: without a number it is 0."""
    return _of(series, lambda of: of.last) or 0.0
