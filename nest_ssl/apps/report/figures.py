"""The key figures of runs, and which of them may be compared.

Losses and accuracies are compared only between runs with the same task and the same data: a loss over 256 codes starts
at log 256, one over 8192 at log 8192, and other masks, features or noise make the task easier or harder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nest_ssl.apps.report.configuration import changes
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.status import Status

Scope = Literal["task", "training", "validation"]
_DATA: dict[Scope, str | None] = {"task": None, "training": "train_ds", "validation": "validation_ds"}
# Parts of `model` that may differ: how a model learns and how its data is loaded. All other parts change the task.
_LEARNING = {
    *("encoder", "decoder", "optim", "optim_param_groups", "numerics", "compile", "batch_norm_over_padding"),
    *("spec_augment", "train_ds", "validation_ds", "test_ds", "target", "nemo_version"),
}
_TASK_WITHIN = ("model.encoder.subsampling_factor", "model.encoder.feat_in")  # they change what a target covers
_LOADING = {
    *("batch_size", "batch_duration", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor"),
    *("drop_last", "shuffle", "shuffle_n", "bucketing_strategy", "bucketing_batch_size", "use_bucketing"),
    *("num_buckets", "bucket_buffer_size", "shuffle_buffer_size", "bucket_duration_bins"),
}

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
    kind: str  # count, number, share, rate
    better: str = ""  # lower, higher
    scope: Scope | None = None


def key_figures(run: Run, status: Status) -> list[KeyFigure]:
    """Return the figures, the most important first."""
    get = run.history.get
    return [
        KeyFigure("step", status.step, "count"),
        KeyFigure("epoch", _of(get("epoch"), lambda of: of.last), "count"),
        KeyFigure("train_loss", recent(get("train_loss")), "number", "lower", "training"),
        KeyFigure("val_loss", _newest(get("val_loss")), "number", "lower", "validation"),
        KeyFigure("best_val_loss", _of(get("val_loss"), _lowest), "number", "lower", "validation"),
        KeyFigure("train_accuracy", recent(get("train_accuracy")), "share", "higher", "training"),
        KeyFigure("val_accuracy", _newest(get("val_accuracy")), "share", "higher", "validation"),
        KeyFigure("audio_seconds_per_second", recent(get("audio_seconds_per_second")), "rate", "higher"),
        KeyFigure("steps_per_second", status.steps_per_second, "rate"),
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


def recent(series: Series | None) -> float | None:
    """Return the mean of the newest values that are finite; NaN if none of them is."""
    if series is None or not len(series):
        return None
    newest = series.values[-min(RECENT_POINTS, max(1, len(series) // RECENT_PART)) :]
    newest = newest[np.isfinite(newest)]
    return float(np.mean(newest)) if len(newest) else math.nan


def as_numbers(figures: list[KeyFigure]) -> dict[str, Any]:
    """Return the figures for JSON: counts are integers, and None means not logged or not finite."""
    return {figure.name: _as_number(figure) for figure in figures}


def _as_number(figure: KeyFigure) -> float | int | None:
    if figure.value is None or not math.isfinite(figure.value):
        return None
    return int(figure.value) if figure.kind == "count" else figure.value


def _newest(series: Series | None) -> float | None:
    """Return the newest value, NaN if it is not finite."""
    if series is None or not len(series):
        return None
    return series.last if math.isfinite(series.last) else math.nan


def _of(series: Series | None, number: Callable[[Series], float]) -> float | None:
    """Apply a function to the finite values; None if there are none."""
    finite = None if series is None else series.finite
    return None if finite is None or not len(finite) else number(finite)


def _lowest(series: Series) -> float:
    return float(series.values.min())


def total_of(run: Run, counter: str) -> float | None:
    """Return a counter, which is logged only when it changes: 0 if it never was, None if the run logs no counters."""
    total = _of(run.history.get(counter), lambda of: of.last)
    return 0.0 if total is None and run.history.get(_COUNTED_WITH) is not None else total


@dataclass(frozen=True)
class Obstacle:
    """Why some runs cannot be compared: keys in which they differ, or runs without a configuration."""

    keys: tuple[str, ...]
    unknown: tuple[str, ...]  # names of runs


def obstacle(runs: Sequence[Run], scope: Scope) -> Obstacle | None:
    """Return why losses and accuracies of these runs cannot be compared; None if they can."""
    unknown = tuple(run.name for run in runs if run.setting("model.num_classes") is None)
    known = [run for run in runs if run.name not in unknown]
    differing = (change.key for run in known[1:] for change in changes(known[0].config, run.config))
    keys = tuple(dict.fromkeys(key for key in differing if _matters(key, scope)))
    return Obstacle(keys, unknown) if len(runs) > 1 and (keys or unknown) else None


def groups_of_one_task(runs: Sequence[Run]) -> list[list[int]]:
    """Group the places of the runs by task: the losses of one group fit into one chart."""
    groups: list[list[int]] = []
    for place, run in enumerate(runs):
        fitting = next((group for group in groups if obstacle([runs[group[0]], run], "task") is None), None)
        if fitting is None:
            groups.append([place])
        else:
            fitting.append(place)
    return groups


def _matters(key: str, scope: Scope) -> bool:
    node, part, name = [*key.split("."), "", ""][:3]
    if node != "model":
        return False
    if part == _DATA[scope]:
        return name not in _LOADING
    return part not in _LEARNING or key in _TASK_WITHIN
