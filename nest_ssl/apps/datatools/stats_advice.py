"""Suggested limits and batches for a data set, in the keys of the configuration.

They follow from the durations in the manifest, as in training, and the batches are those of training's own sampler:
a run logs the padding efficiency that is predicted here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nest_ssl.data.loading.buckets import DurationBatches
from nest_ssl.data.manifest_lines import Seconds

MOST_HOURS_DROPPED = 0.01  # by a limit
LONGEST: Seconds = 60.0  # max_duration of the shipped configurations
SHORTEST: Seconds = 1.0  # shorter audio is lengthened to this (min_audio_len_secs)
_MIN_DURATIONS = (1.0, 0.5, 0.2, 0.1)
_BUCKETS = (1, 2, 3, 5, 10, 20, 30)
_GOOD_ENOUGH = 0.02  # padding efficiency below the best; fewer buckets make batches more random
MOST_SAMPLED = 50_000  # durations; more would not change a digit that is printed


@dataclass(frozen=True)
class Limit:
    """A limit of durations, and the share of the data outside it."""

    seconds: Seconds
    lines_dropped: float
    hours_dropped: float


@dataclass(frozen=True)
class BucketedBatches:
    """Batches by duration, and random batches of a fixed size that need as much memory on average."""

    batch_size: int
    random_efficiency: float  # audio / (audio + padding)
    batch_duration: int
    num_buckets: int
    efficiency: float


@dataclass(frozen=True)
class Advice:
    """Overrides of a training run and their effects; `batches` is None if none can be suggested."""

    min_duration: Limit
    max_duration: Limit
    lines_kept: int
    batches: BucketedBatches | None
    reason: str = ""  # why there are none

    @property
    def overrides(self) -> list[str]:
        """The overrides for `nest-ssl train`; none if the limits leave no data."""
        if not self.lines_kept:
            return []
        words = [f"min_duration={self.min_duration.seconds:g}", f"max_duration={self.max_duration.seconds:g}"]
        if self.batches is not None:
            words += ["batch_size=null", f"batch_duration={self.batches.batch_duration}"]
            words.append(f"num_buckets={self.batches.num_buckets}")
        return [f"model.train_ds.{word}" for word in words]


def advise(durations: np.ndarray, batch_size: int, *, in_tar: bool = False) -> Advice | None:
    """Return advice for lines of these durations, NaN if a line has none; None if no line has one."""
    known = durations[~np.isnan(durations)]
    if not len(known):
        return None
    longest, shortest = suggest_max_duration(known), suggest_min_duration(known)
    limits = _limit(shortest, known, known < shortest), _limit(longest, known, known > longest)
    kept = known[(known >= shortest) & (known <= longest)]
    missing = len(durations) - len(known)
    lines_kept = len(kept) + missing  # limits apply only to lines with a duration
    reason = ""
    if not lines_kept:
        reason = "all clips are outside of the limits; cut long ones first"
    elif missing:
        reason = f"{missing:,} lines have no duration"
    elif in_tar:
        reason = "for tar files, nest-ssl data tar --buckets makes them"
    return Advice(*limits, lines_kept, None if reason else suggest_batches(kept, batch_size), reason)


def suggest_max_duration(durations: np.ndarray) -> Seconds:
    """Return the fewest whole seconds, up to a minute, that keep nearly all hours: long clips cost a batch memory."""
    ascending = np.sort(durations)
    seconds = np.cumsum(ascending)
    enough = int(np.searchsorted(seconds, seconds[-1] * (1 - MOST_HOURS_DROPPED)))
    return min(LONGEST, float(math.ceil(ascending[min(enough, len(ascending) - 1)])))


def suggest_min_duration(durations: np.ndarray) -> Seconds:
    """Return 1 s, or less if that would drop too many hours."""
    most = durations.sum() * MOST_HOURS_DROPPED
    return next((least for least in _MIN_DURATIONS if durations[durations < least].sum() <= most), _MIN_DURATIONS[-1])


def suggest_batches(durations: np.ndarray, batch_size: int) -> BucketedBatches:
    """Return batches of as many seconds as random batches have with their padding, so that they need no more memory."""
    longest_of_all = float(durations.max())
    if len(durations) > MOST_SAMPLED:
        durations = np.random.default_rng(0).choice(durations, MOST_SAMPLED, replace=False)
    durations = np.maximum(durations, SHORTEST)
    batch_size = min(batch_size, len(durations))
    longest = expected_longest(durations, batch_size)
    batch_duration = math.ceil(max(batch_size * longest, longest_of_all, SHORTEST))
    efficiencies = {
        number: DurationBatches(durations, batch_duration=batch_duration, num_buckets=number).padding_efficiency()
        for number in _BUCKETS
    }
    best = max(efficiencies.values())
    chosen = next(number for number in _BUCKETS if efficiencies[number] >= best - _GOOD_ENOUGH)
    return BucketedBatches(
        batch_size=batch_size,
        random_efficiency=float(durations.mean()) / longest,
        batch_duration=batch_duration,
        num_buckets=chosen,
        efficiency=efficiencies[chosen],
    )


def expected_longest(durations: np.ndarray, batch_size: int) -> Seconds:
    """Return the exact mean of the longest of `batch_size` utterances, drawn without replacement.

    Of n in ascending order, the k-th is the longest of C(k-1, b-1) of all C(n, b) draws.
    """
    ascending = np.sort(durations)
    n, b = len(ascending), batch_size
    k = np.arange(n, b, -1, dtype=np.float64)
    shares = b / n * np.concatenate(([1.0], np.cumprod((k - b) / (k - 1))))  # for k = n, n-1, ..., b
    return float(shares @ ascending[::-1][: len(shares)])


def _limit(seconds: Seconds, durations: np.ndarray, outside: np.ndarray) -> Limit:
    return Limit(seconds, float(outside.mean()), float(durations[outside].sum() / durations.sum()))
