"""Recommend configuration values from the measurements, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nest_ssl.apps.doctor.search import GAIN, Bucket
from nest_ssl.apps.doctor.steps import Outcome

_NODE = "model.train_ds"
_MORE_TIME = "more time: --minutes"
_KEEPS_UP = 0.05  # share of a step that may be spent loading, without workers
_WORTH_TRYING = (1, 2, 4, 8, 16)  # workers


@dataclass(frozen=True)
class Recommendation:
    """A recommendation and its reason; without overrides, the configured value should be kept."""

    overrides: tuple[str, ...]
    reason: str


def typical(buckets: Sequence[Bucket]) -> Bucket | None:
    """Return the middle one of the measured lengths."""
    tried = [bucket for bucket in buckets if bucket.useful is not None]
    return tried[len(tried) // 2] if tried else None


def batch_advice(
    buckets: Sequence[Bucket], train_ds: dict[str, Any], accumulate: int, utterances: int | None
) -> Recommendation | None:
    """Recommend `batch_size` or `batch_duration`: the configured value if it fits and no larger one is faster.

    It gets smaller only if it was measured or predicted not to fit. `buckets` has all lengths, also those not tried.
    """
    middle = typical(buckets)
    if middle is None or middle.useful is None:
        return None
    by_seconds = train_ds.get("batch_duration") is not None
    key = "batch_duration" if by_seconds else "batch_size"
    configured = float(train_ds["batch_duration"]) if by_seconds else int(train_ds.get("batch_size") or 1)
    longest = buckets[-1]  # a batch that fits with these clips fits with all
    least = longest.seconds if by_seconds else 1

    def clips(bucket: Bucket) -> int:
        """Return how many clips of this length the configured batch has."""
        return max(1, int(configured // bucket.seconds)) if by_seconds else int(configured)

    def size(bucket: Bucket, count: int) -> float:
        """Return the value of the key for a batch of so many clips."""
        return count * bucket.seconds if by_seconds else count

    known = [bucket for bucket in buckets if bucket.largest is not None]
    overfull = [bucket for bucket in known if clips(bucket) > bucket.safe]
    if overfull:
        fits = max(1, math.floor(min(size(bucket, bucket.safe) for bucket in known)))
        times = math.ceil(configured / max(fits, least))
        smaller = fits if by_seconds else max(1, int(configured // times))
        tightest = min(overfull, key=lambda bucket: size(bucket, bucket.safe))
        return Recommendation(
            (f"{_NODE}.{key}={smaller}", f"trainer.accumulate_grad_batches={accumulate * times}"),
            f"{tightest.safe} clips of {tightest.seconds:g} s fit, {clips(tightest)} may not; updates stay as large",
        )
    if longest.largest is None and clips(longest) > longest.safe:
        no_time = f"there was no time to tell whether {clips(longest)} x {longest.seconds:g} s fits ({_MORE_TIME})"
        return Recommendation((), f"{key}={configured:g}: {no_time}")
    safe = min(size(bucket, bucket.safe) for bucket in (*known, longest))
    useful = min(max(size(middle, middle.useful.trial.batch_size), least), safe)
    if utterances and not by_seconds:
        useful = min(useful, utterances)
    if useful <= configured:
        larger = "larger ones are not faster" if middle.saturated else "there was no time to try larger ones"
        return Recommendation((), f"{key}={configured:g}: it fits, and {larger}")
    gain = middle.useful.speed / _speed_at(middle, clips(middle))
    return Recommendation(
        (f"{_NODE}.{key}={math.ceil(useful)}",),
        f"{gain:.2g} times as fast as {configured:g}, and fits at every length",
    )


@dataclass(frozen=True)
class Loading:
    """Seconds per batch with a number of workers."""

    workers: int
    seconds: float


@dataclass(frozen=True)
class Workers:
    """The measurements, and the smallest number of workers that keeps up with a step, or the best of those tried."""

    tried: tuple[Loading, ...]
    step: float  # seconds
    best: Loading
    keeps_up: bool
    cut_short: bool  # there was no time to try all numbers of workers


def choose_workers(
    measure: Callable[[int], Loading], step: float, *, most: int, remaining: Callable[[], float]
) -> Workers:
    """Measure without workers, then with more and more until loading is as fast as the steps.

    Without workers the whole loading time adds to the step; with workers, only the part that exceeds the step.
    """
    alone = measure(0)
    tried, keeps_up, cut_short = [alone], alone.seconds <= _KEEPS_UP * step, False
    enough = min(most, math.ceil(alone.seconds / step))
    for count in [*(count for count in _WORTH_TRYING if enough <= count < most), *([most] if most else [])]:
        cut_short = not keeps_up and remaining() <= 0
        if keeps_up or cut_short:
            break
        tried.append(measure(count))
        keeps_up = tried[-1].seconds <= step
    best = min(tried, key=lambda one: max(one.seconds, step) if one.workers else one.seconds + step)
    return Workers(tuple(tried), step, tried[-1] if keeps_up else best, keeps_up, cut_short)


def workers_advice(workers: Workers, configured: int, gpu: bool) -> Recommendation:
    """Recommend the smallest number of workers that keeps up; keep the configured number if it was not tried."""
    best, alone = workers.best, workers.tried[0]
    times = f"a batch loads in {_seconds(alone.seconds)}, a step takes {_seconds(workers.step)}"
    reason = (
        times if best.workers == 0 else f"{times}; with {best.workers} workers a batch takes {_seconds(best.seconds)}"
    )
    if best.seconds > workers.step:
        reason += "; loading is the bottleneck"
    if workers.cut_short:
        reason += f"; there was no time to try {'more' if len(workers.tried) > 1 else 'workers'} ({_MORE_TIME})"
    if best.workers and not gpu:
        reason += "; each worker takes CPU time from the steps"
    if best.workers == configured or (workers.cut_short and configured > best.workers):
        return Recommendation((), f"num_workers={configured}: {reason}")
    return Recommendation((f"{_NODE}.num_workers={best.workers}",), reason)


def precision_advice(now: Outcome, other: Outcome) -> Recommendation:
    """Recommend the other precision if it is faster."""
    ratio = other.speed / now.speed if now.speed else 0.0
    name = other.trial.precision
    if other.fits and ratio >= GAIN:
        return Recommendation((f"trainer.precision={name}",), f"{ratio:.2g} times as fast as {now.trial.precision}")
    return Recommendation(
        (), f"precision={now.trial.precision}: {name} is not faster here ({ratio:.2g} times the speed)"
    )


def _speed_at(bucket: Bucket, batch_size: int) -> float:
    """Return the speed of the measured batch that is nearest, if possible a smaller one."""
    fitting = [outcome for outcome in bucket.outcomes if outcome.fits]
    below = [outcome for outcome in fitting if outcome.trial.batch_size <= batch_size]
    return (below[-1] if below else fitting[0]).speed


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value >= 0.1 else f"{1000 * value:.2g} ms"
