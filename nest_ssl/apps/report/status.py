"""Is a run going, finished or stopped? A folder does not say, so it is judged by how old the newest number is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nest_ssl.apps.report.events import Series, Start
from nest_ssl.apps.report.run import Run

State = Literal["running", "finished", "stopped", "silent"]
SILENCE_SECONDS = 600.0  # a running run is never called stopped sooner: TensorBoard keeps numbers back for 2 minutes
SILENCE_GAPS = 3.0  # times the longest silence so far of the newest start, which validation may have caused
RECENT_SHARE = 0.5  # of the newest start: what the present speed is taken from


@dataclass(frozen=True)
class Status:
    """How far a run is. `silent` has logged nothing yet; `total` is None where nothing bounds the run."""

    state: State
    step: int  # optimiser steps done
    total: int | None
    total_is_estimated: bool  # from the length of the epochs so far
    age: float | None  # seconds since the newest number
    patience: float  # seconds of silence after which a run counts as stopped
    steps_per_second: float | None

    @property
    def seconds_left(self) -> float | None:
        """At the present speed, of a run that goes on."""
        if self.state != "running" or self.total is None or not self.steps_per_second:
            return None
        return max(self.total - self.step, 0) / self.steps_per_second


def status_of(run: Run, now: float) -> Status:
    """Judged by the newest number that was logged, the configuration's bounds, and the checkpoints' names."""
    history = run.history
    logged = 0 if history.last_step is None else history.last_step + 1  # Lightning counts from 0
    step = max(logged, run.checkpoint_step)
    total, estimated = _total(run)
    beat = _heartbeat(run)
    patience = _patience(beat)
    age = None if history.last_time is None else max(now - history.last_time, 0.0)
    every = run.whole_setting("trainer.log_every_n_steps") or 50
    if total is not None and step >= (total - every if estimated else total):
        state: State = "finished"
    elif age is None or age > patience:
        state = "stopped"
    else:
        state = "running" if logged else "silent"
    return Status(state, step, total, estimated, age, patience, _speed(beat))


def _total(run: Run) -> tuple[int | None, bool]:
    """Steps that the configuration allows, and whether they are an estimate."""
    steps, epochs = run.whole_setting("trainer.max_steps"), run.whole_setting("trainer.max_epochs")
    bound = steps if steps is not None and steps > 0 else None
    length = _epoch_length(run.history.get("epoch"))
    if epochs is None or epochs < 1 or length is None:
        return bound, False
    by_epochs = math.ceil(length * epochs)
    return (bound, False) if bound is not None and bound <= by_epochs else (by_epochs, True)


def _epoch_length(epochs: Series | None) -> float | None:
    """Steps, from the last change of the epoch's number; None within the first."""
    if epochs is None or len(epochs.finite) < 2:
        return None
    epochs = epochs.finite
    changes = np.flatnonzero(np.diff(epochs.values) > 0)
    if not len(changes) or epochs.values[changes[-1] + 1] < 1:
        return None
    before, after = epochs.steps[changes[-1]], epochs.steps[changes[-1] + 1]
    return float((before + after) / 2 + 1) / float(epochs.values[changes[-1] + 1])


def _heartbeat(run: Run) -> Series | None:
    """The tag with the most numbers of the newest start."""
    since = _newest(run.history.starts)
    if since is None or since.first_step is None:
        return None
    longest = max(run.history.series.values(), key=len)
    newest = longest.only(longest.times >= since.time)
    return newest if len(newest) else None


def _newest(starts: list[Start]) -> Start | None:
    return starts[-1] if starts else None


def _patience(beat: Series | None) -> float:
    if beat is None or len(beat) < 2:
        return SILENCE_SECONDS
    return max(SILENCE_SECONDS, SILENCE_GAPS * float(np.diff(beat.times).max()))


def _speed(beat: Series | None) -> float | None:
    """Steps a second of the newest start, validation and checkpoints included."""
    if beat is None or len(beat) < 2:
        return None
    first = int((1 - RECENT_SHARE) * (len(beat) - 1))
    seconds = float(beat.times[-1] - beat.times[first])
    return float(beat.steps[-1] - beat.steps[first]) / seconds if seconds > 0 else None
