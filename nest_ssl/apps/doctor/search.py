"""Finds, for each length of clip, how many fit into memory and from how many on speed no longer grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.apps.doctor.bench import OutOfTime
from nest_ssl.apps.doctor.cost import MemoryCost, fit_memory
from nest_ssl.apps.doctor.steps import Outcome, Trial
from nest_ssl.data.loading.buckets import split_by_duration

GAIN = 1.05  # less than this from twice the batch is no gain
_BUCKETS = 4
_WITHOUT_DATA = (5.0, 10.0, 20.0)  # seconds
_POINTS_OF_A_FIT = 3
_MOST_CLIPS = 1024
_TIME_GROWTH = 1.5  # exponent: between linear and attention's square
_TIMES = 2.2  # steps that a measurement may take

Measure = Callable[[Trial], Outcome]


@dataclass(frozen=True)
class Bucket:
    """What was found for clips of this many seconds."""

    seconds: float
    outcomes: tuple[Outcome, ...]
    largest: int | None  # clips that fit; None if nothing overflowed and there is too little to predict it from
    measured: bool  # one that is too large was tried; else `largest` is predicted from smaller batches
    saturated: bool  # speed stopped growing

    @property
    def safe(self) -> int:
        """Clips that are known to fit: by `largest` or, without it, the most that were tried."""
        return self.tried if self.largest is None else self.largest

    @property
    def tried(self) -> int:
        """The most clips that fitted when tried."""
        return max((outcome.trial.batch_size for outcome in self.outcomes if outcome.fits), default=0)

    def fits(self, clips: int) -> bool | None:
        """Whether so many do; None if nobody can tell: `largest` is unknown, or what overflowed was larger still."""
        if clips <= self.safe:
            return True
        overflowed = [outcome.trial.batch_size for outcome in self.outcomes if not outcome.fits]
        return None if self.largest is None or clips < min(overflowed, default=0) else False

    @property
    def useful(self) -> Outcome | None:
        """The smallest batch that is about as fast as the fastest."""
        fitting = [outcome for outcome in self.outcomes if outcome.fits]
        best = max((outcome.speed for outcome in fitting), default=0.0)
        return next((outcome for outcome in fitting if outcome.speed * GAIN >= best), None)


@dataclass(frozen=True)
class Limits:
    """What the search may use."""

    memory: int  # bytes
    may_overflow: bool  # a batch that is too large does no harm


def bucket_tops(durations: np.ndarray, wanted: Sequence[float], longest: float | None) -> list[float]:
    """Lengths to try: those asked for, and the longest of the data, or the longest in each of a few buckets of it."""
    if wanted:
        longest_of_data = round(float(durations.max(initial=0)), 2)  # decides what fits
        return sorted({*wanted, max((*wanted, longest_of_data))})
    if not len(durations):
        tops = [seconds for seconds in _WITHOUT_DATA if longest is None or seconds < longest]
        return [*tops, longest] if longest is not None and longest <= _WITHOUT_DATA[-1] else tops
    return sorted({round(float(durations[bucket].max()), 2) for bucket in split_by_duration(durations, _BUCKETS)})


class Search:
    """Doubles the batch of every length in turn: while it fits, gets faster, and there is time.

    On a CPU nothing is tried that is not expected to fit: what fits at most is predicted from what was measured, and a
    length that the first measurements advised against gets its turn when more is known. On a GPU an overflow is
    harmless, so what fits at most is found by halving the last doubling.
    """

    def __init__(
        self, measure: Measure, limits: Limits, remaining: Callable[[], float], tell: Callable[[str], None]
    ) -> None:
        self.measure, self.limits, self.remaining, self.tell = measure, limits, remaining, tell
        self.outcomes: list[Outcome] = []
        self.out_of_time = False

    def run(self, lengths: Sequence[float], precision: str) -> list[Bucket]:
        """All lengths, shortest first."""
        going, batch_size = list(lengths), 1
        while going and batch_size <= _MOST_CLIPS:
            going = [seconds for seconds in going if self._try(Trial(batch_size, seconds, precision))]
            batch_size *= 2
        if self.limits.may_overflow:
            for seconds in lengths:
                self._halve(seconds, precision)
        for seconds in lengths:
            if not self._of(seconds):
                self.try_once(Trial(1, seconds, precision))
        return self.buckets(lengths)

    def buckets(self, lengths: Sequence[float]) -> list[Bucket]:
        """What is known by now."""
        return [self._bucket(seconds) for seconds in lengths]

    @property
    def cost(self) -> MemoryCost | None:
        """How memory grows, once there is enough to tell."""
        fitting = [outcome for outcome in self.outcomes if outcome.fits]
        return fit_memory(fitting) if len(fitting) >= _POINTS_OF_A_FIT else None

    def try_once(self, trial: Trial) -> Outcome | None:
        """An outcome, known or measured now; None if it would not fit or there is no time."""
        known = [outcome for outcome in self.outcomes if outcome.trial == trial]
        if known:
            return known[0]
        if self.out_of_time or not (self._affordable(trial) and self._expected_to_fit(trial)):
            return None
        self.tell(f"{trial.batch_size} x {trial.seconds:g} s")
        try:
            outcome = self.measure(trial)
        except OutOfTime:
            self.out_of_time = True
            return None
        self.outcomes.append(outcome)
        return outcome

    def _try(self, trial: Trial) -> bool:
        """Whether twice as many are worth a try."""
        outcome = self.try_once(trial)
        if outcome is None or not outcome.fits:
            return False
        return self.limits.may_overflow or not self._saturated(trial.seconds)

    def _halve(self, seconds: float, precision: str) -> None:
        """Between the largest that fits and the smallest that does not, to an eighth."""
        while True:
            mine = self._of(seconds)
            low = max((one.trial.batch_size for one in mine if one.fits), default=0)
            high = min((one.trial.batch_size for one in mine if not one.fits), default=0)
            if high - low <= max(1, low // 8) or self.try_once(Trial((low + high) // 2, seconds, precision)) is None:
                return

    def _bucket(self, seconds: float) -> Bucket:
        mine = sorted(self._of(seconds), key=lambda one: one.trial.batch_size)
        tried = max((one.trial.batch_size for one in mine if one.fits), default=0)
        if any(not one.fits for one in mine):
            return Bucket(seconds, tuple(mine), tried, True, self._saturated(seconds))
        predicted = self._predicted(seconds)
        largest = None if predicted is None else max(tried, predicted)
        return Bucket(seconds, tuple(mine), largest, False, self._saturated(seconds))

    def _predicted(self, seconds: float) -> int | None:
        """The most clips that fit, by the law; None if there is none yet."""
        cost = self.cost
        if cost is None:
            return None
        most = min(_MOST_CLIPS, cost.largest(seconds, self.limits.memory))
        lengths = {one.trial.seconds for one in self.outcomes if one.fits}
        if most and len(lengths) == 1 and seconds > max(lengths):
            return None  # clips of one length tell nothing of squares: fewer may fit
        return most

    def _of(self, seconds: float) -> list[Outcome]:
        """Of the search itself; other precisions are compared, not searched."""
        first = self.outcomes[0].trial.precision if self.outcomes else ""
        return [one for one in self.outcomes if one.trial.seconds == seconds and one.trial.precision == first]

    def _saturated(self, seconds: float) -> bool:
        speeds = [one.speed for one in sorted(self._of(seconds), key=lambda one: one.trial.batch_size) if one.fits]
        return len(speeds) > 1 and speeds[-1] < GAIN * max(speeds[:-1])

    def _affordable(self, trial: Trial) -> bool:
        """Whether a measurement would end in time, judged by the largest batch so far."""
        timed = [one for one in self.outcomes if one.seconds is not None]
        if not timed:
            return self.remaining() > 0
        nearest = max(timed, key=lambda one: one.trial.audio)
        growth = max(1.0, trial.audio / nearest.trial.audio) ** _TIME_GROWTH
        return _TIMES * (nearest.seconds or 0.0) * growth < self.remaining()

    def _expected_to_fit(self, trial: Trial) -> bool:
        if self.limits.may_overflow:
            return True
        cost = self.cost
        if cost is not None:
            return cost.peak(trial.batch_size, trial.seconds) <= self.limits.memory
        if not self.outcomes:
            return True
        last = self.outcomes[-1]
        # what a step needs on top grows at most as clips do, and with the square of their length
        growth = trial.batch_size / last.trial.batch_size * max(1.0, trial.seconds / last.trial.seconds) ** 2
        return last.resting + (last.peak - last.resting) * growth <= self.limits.memory
