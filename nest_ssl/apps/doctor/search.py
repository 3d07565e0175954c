"""Search, for each length of clip, the largest batch that fits into memory and the smallest that is fast.

On a CPU the largest batch is predicted: peak memory is fitted as a + B (b d + c d^2) for B clips of d seconds. The
first term is there without a batch, the square comes from attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nest_ssl.apps.doctor.steps import Outcome, OutOfTime, Trial
from nest_ssl.data.loading.buckets import split_by_duration

GAIN = 1.05  # a batch twice as large must be this much faster, or it is no gain
_BUCKETS = 4
_WITHOUT_DATA = (5.0, 10.0, 20.0)  # seconds
_POINTS_OF_A_FIT = 3
_MOST_CLIPS = 1024  # tried
_MOST_PREDICTED = 10**6
_TIME_GROWTH = 1.5  # exponent of step time over batch length: between linear and attention's square
_TIMES = 2.2  # steps that a measurement takes, including the first, slower one


@dataclass(frozen=True)
class MemoryCost:
    """Peak memory in bytes: `always` + B * (`second` * d + `square` * d^2) for B clips of d seconds."""

    always: float
    second: float
    square: float

    def peak(self, batch_size: int, seconds: float) -> float:
        return self.always + batch_size * (self.second * seconds + self.square * seconds**2)

    def largest(self, seconds: float, memory: float) -> int:
        """Return the largest number of clips of this length that fits."""
        one = self.second * seconds + self.square * seconds**2
        return _MOST_PREDICTED if one <= 0 else max(0, min(_MOST_PREDICTED, math.floor((memory - self.always) / one)))

    def batch_duration(self, memory: float) -> tuple[float, float | None]:
        """Return a `batch_duration` and a `quadratic_duration` with which batches of any lengths fit."""
        if self.second <= 0:
            return math.inf, None
        return (memory - self.always) / self.second, self.second / self.square if self.square > 0 else None


def fit_memory(outcomes: Sequence[Outcome]) -> MemoryCost:
    """Fit the memory cost to measured peaks: no term negative, and no measured peak above the prediction."""
    measured = [outcome for outcome in outcomes if outcome.fits]
    clips = np.array([outcome.trial.batch_size for outcome in measured], dtype=float)
    seconds = np.array([outcome.trial.seconds for outcome in measured])
    peaks = np.array([outcome.peak for outcome in measured], dtype=float)
    terms = np.stack([np.ones_like(clips), clips * seconds, clips * seconds**2], axis=1)
    several = len(set(seconds.tolist())) > 1  # one length alone cannot separate the linear from the quadratic term
    costs = np.zeros(3)
    used = [0, 1, 2] if several else [0, 1]
    costs[used] = _non_negative_least_squares(terms[:, used], peaks)
    costs[0] += max(0.0, float((peaks - terms @ costs).max()))
    return MemoryCost(*costs.tolist())


def _non_negative_least_squares(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Minimise the relative error by least squares; drop terms with a negative factor, one after the other."""
    used = list(range(terms.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(terms[:, used] / values[:, None], np.ones_like(values), rcond=None)
        if len(used) == 1 or found.min() >= 0:
            costs = np.zeros(terms.shape[1])
            costs[used] = np.maximum(found, 0.0)
            return costs
        used.pop(int(found.argmin()))


@dataclass(frozen=True)
class Bucket:
    """The results for clips of one length."""

    seconds: float
    outcomes: tuple[Outcome, ...]
    largest: int | None  # clips that fit; None if no batch was too large and there are too few to predict from
    measured: bool  # a batch that is too large was tried; else `largest` is predicted from smaller ones
    saturated: bool  # larger batches are not faster

    @property
    def safe(self) -> int:
        """Clips that fit: `largest` or, if unknown, the most that were tried."""
        return _most_that_fit(self.outcomes) if self.largest is None else self.largest

    @property
    def useful(self) -> Outcome | None:
        """The smallest batch that is about as fast as the fastest."""
        fitting = [outcome for outcome in self.outcomes if outcome.fits]
        best = max((outcome.speed for outcome in fitting), default=0.0)
        return next((outcome for outcome in fitting if outcome.speed * GAIN >= best), None)


def _most_that_fit(outcomes: Sequence[Outcome]) -> int:
    return max((one.trial.batch_size for one in outcomes if one.fits), default=0)


def clip_lengths(durations: np.ndarray, wanted: Sequence[float], longest: float | None) -> list[float]:
    """Return the lengths to try: `wanted` and the longest of the data, or the longest in each of four buckets."""
    if wanted:
        longest_of_data = round(float(durations.max(initial=0)), 2)  # needs the most memory
        return sorted({*wanted, max((*wanted, longest_of_data))})
    if not len(durations):
        return sorted({min(seconds, longest or seconds) for seconds in _WITHOUT_DATA})
    return sorted({round(float(durations[bucket].max()), 2) for bucket in split_by_duration(durations, _BUCKETS)})


@dataclass
class Search:
    """Doubles the batch for every length while it fits, gets faster, and there is time.

    On a CPU only batches that are expected to fit are tried, and the largest is predicted. A length that was skipped
    at first is tried again when more is known. On a GPU running out of memory is harmless, so the largest batch is
    found by bisection between the last two.
    """

    measure: Callable[[Trial], Outcome]
    memory: int  # bytes
    may_overflow: bool  # a batch that is too large is harmless (on a GPU)
    remaining: Callable[[], float]  # seconds
    progress: Callable[[str], None]
    precision: str = "32"
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, lengths: Sequence[float]) -> list[Bucket]:
        """Search all lengths, shortest first."""
        going, batch_size = list(lengths), 1
        while going and batch_size <= _MOST_CLIPS:
            going = [seconds for seconds in going if self._goes_on(self.try_once(batch_size, seconds))]
            batch_size *= 2
        if self.may_overflow:
            for seconds in lengths:
                self._bisect(seconds)
        for seconds in lengths:
            if not self._outcomes_at(seconds):
                self.try_once(1, seconds)
        return self.buckets(lengths)

    def buckets(self, lengths: Sequence[float]) -> list[Bucket]:
        """Return the results so far."""
        return [self._bucket(seconds) for seconds in lengths]

    @property
    def cost(self) -> MemoryCost | None:
        """The fitted memory cost, or None while there are too few measurements."""
        fitting = [outcome for outcome in self.outcomes if outcome.fits]
        return fit_memory(fitting) if len(fitting) >= _POINTS_OF_A_FIT else None

    def try_once(self, batch_size: int, seconds: float, precision: str | None = None) -> Outcome | None:
        """Return the outcome of a trial, known or measured now; None if it would not fit or there is no time."""
        trial = Trial(batch_size, seconds, precision or self.precision)
        known = [outcome for outcome in self.outcomes if outcome.trial == trial]
        if known:
            return known[0]
        if not (self._affordable(trial) and self._expected_to_fit(trial)):
            return None
        self.progress(f"{trial.batch_size} x {trial.seconds:g} s")
        try:
            outcome = self.measure(trial)
        except OutOfTime:
            return None
        self.outcomes.append(outcome)
        return outcome

    def _goes_on(self, outcome: Outcome | None) -> bool:
        """Return whether a batch twice as large is worth trying."""
        if outcome is None or not outcome.fits:
            return False
        return self.may_overflow or not self._saturated(outcome.trial.seconds)

    def _bisect(self, seconds: float) -> None:
        """Narrow the gap between the largest batch that fits and the smallest that does not, to one eighth."""
        while True:
            outcomes = self._outcomes_at(seconds)
            low = _most_that_fit(outcomes)
            high = min((one.trial.batch_size for one in outcomes if not one.fits), default=0)
            if high - low <= max(1, low // 8) or self.try_once((low + high) // 2, seconds) is None:
                return

    def _bucket(self, seconds: float) -> Bucket:
        outcomes = self._outcomes_at(seconds)
        overflowed = any(not one.fits for one in outcomes)
        predicted = 0 if overflowed else self._predicted(seconds)
        largest = None if predicted is None else max(_most_that_fit(outcomes), predicted)
        return Bucket(seconds, tuple(outcomes), largest, overflowed, self._saturated(seconds))

    def _predicted(self, seconds: float) -> int | None:
        """Return the largest number of clips that fits by the fitted cost; None if it cannot be predicted yet."""
        cost = self.cost
        if cost is None:
            return None
        most = min(_MOST_CLIPS, cost.largest(seconds, self.memory))
        lengths = {one.trial.seconds for one in self.outcomes if one.fits}
        if most and len(lengths) == 1 and seconds > max(lengths):
            return None  # clips of one length say nothing about the quadratic term: fewer may fit
        return most

    def _outcomes_at(self, seconds: float) -> list[Outcome]:
        """Return the outcomes for one length in the precision of the search, smallest batch first."""
        found = [one for one in self.outcomes if (one.trial.seconds, one.trial.precision) == (seconds, self.precision)]
        return sorted(found, key=lambda one: one.trial.batch_size)

    def _saturated(self, seconds: float) -> bool:
        speeds = [one.speed for one in self._outcomes_at(seconds) if one.fits]
        return len(speeds) > 1 and speeds[-1] < GAIN * max(speeds[:-1])

    def _affordable(self, trial: Trial) -> bool:
        """Return whether a measurement would end in time, estimated from the largest batch so far."""
        timed = [one for one in self.outcomes if one.seconds is not None]
        if not timed:
            return self.remaining() > 0
        nearest = max(timed, key=lambda one: one.trial.audio)
        growth = max(1.0, trial.audio / nearest.trial.audio) ** _TIME_GROWTH
        return _TIMES * (nearest.seconds or 0.0) * growth < self.remaining()

    def _expected_to_fit(self, trial: Trial) -> bool:
        if self.may_overflow:
            return True
        cost = self.cost
        if cost is not None:
            return cost.peak(trial.batch_size, trial.seconds) <= self.memory
        if not self.outcomes:
            return True
        last = self.outcomes[-1]
        # a step's own memory grows at most linearly with the clips, and with the square of their length
        growth = trial.batch_size / last.trial.batch_size * max(1.0, trial.seconds / last.trial.seconds) ** 2
        return last.resting + (last.peak - last.resting) * growth <= self.memory
