"""Is a run active, finished or stopped? Its folder does not say, so the age of the newest value decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.run import Run

State = Literal["running", "finished", "stopped", "silent"]
SILENCE_SECONDS = 600.0  # silence of a run that may be active: TensorBoard buffers values for 2 minutes
SILENCE_GAPS = 3.0  # times the longest gap of the newest start, which a validation may have caused
RECENT_SHARE = 0.5  # of the newest start, for the current speed


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
