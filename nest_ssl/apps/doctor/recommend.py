"""Recommend configuration values from the measurements, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nest_ssl.apps.doctor.loading import Workers
from nest_ssl.apps.doctor.search import GAIN, Bucket
from nest_ssl.apps.doctor.steps import Outcome

_NODE = "model.train_ds"
_MORE_TIME = "more time: --minutes"


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
    """Recommend the batch: the configured one if it fits and no other is faster.

    It gets smaller only if it was measured or predicted not to fit. `buckets` has all lengths, also those not tried.
    """
    middle = typical(buckets)
    if middle is None:
        return None
    if train_ds.get("batch_duration") is not None:
        return _by_seconds(buckets, middle, float(train_ds["batch_duration"]), accumulate)
    return _by_number(buckets, middle, int(train_ds.get("batch_size") or 1), accumulate, utterances)


def _by_number(
    buckets: Sequence[Bucket], middle: Bucket, configured: int, accumulate: int, utterances: int | None
) -> Recommendation:
    useful_batch = middle.useful
    assert useful_batch is not None
    known = [bucket for bucket in buckets if bucket.largest is not None]
    tightest = min(known, key=lambda bucket: bucket.safe, default=None)
    if tightest is not None and configured > tightest.safe:
        times = math.ceil(configured / max(1, tightest.safe))
        return Recommendation(
            (
                f"{_NODE}.batch_size={max(1, configured // times)}",
                f"trainer.accumulate_grad_batches={accumulate * times}",
            ),
            f"{configured} clips of {tightest.seconds:g} s {_fail([tightest.fits(configured)])}, {tightest.safe} do; "
            "updates stay as large",
        )
    longest = buckets[-1]  # a batch that fits with these clips fits with all
    if longest.fits(configured) is None:
        return Recommendation((), f"batch_size={configured}: {_no_time(configured, longest)}")
    safe = min(bucket.safe for bucket in (*known, longest))
    useful = min(useful_batch.trial.batch_size, safe, utterances or safe)
    if useful <= configured:
        return Recommendation((), f"batch_size={configured}: it fits, and {_larger(middle)}")
    gain = useful_batch.speed / _speed_at(middle, configured)
    return Recommendation(
        (f"{_NODE}.batch_size={useful}",), f"{gain:.2g} times as fast as {configured}, and fits at every length"
    )


def _by_seconds(buckets: Sequence[Bucket], middle: Bucket, configured: float, accumulate: int) -> Recommendation:
    useful_batch = middle.useful
    assert useful_batch is not None
    known, longest = [bucket for bucket in buckets if bucket.largest is not None], buckets[-1]
    if any(_clips(configured, bucket) > bucket.safe for bucket in known):
        fits = max(1, math.floor(min(bucket.safe * bucket.seconds for bucket in known)))
        times = math.ceil(configured / max(fits, longest.seconds))
        fail = _fail([bucket.fits(_clips(configured, bucket)) for bucket in known])
        return Recommendation(
            (f"{_NODE}.batch_duration={fits}", f"trainer.accumulate_grad_batches={accumulate * times}"),
            f"{configured:g} s {fail} at every length, {fits} s do; updates stay as large",
        )
    if longest.fits(_clips(configured, longest)) is None:
        return Recommendation((), f"batch_duration={configured:g}: {_no_time(_clips(configured, longest), longest)}")
    safe = min(bucket.safe * bucket.seconds for bucket in (*known, longest))
    useful = min(max(useful_batch.trial.audio, longest.seconds), safe)
    if useful <= configured:
        return Recommendation((), f"batch_duration={configured:g}: it fits, and {_larger(middle)}")
    return Recommendation((f"{_NODE}.batch_duration={math.ceil(useful)}",), "faster, and fits at every length")


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


def _clips(batch_duration: float, bucket: Bucket) -> int:
    return max(1, int(batch_duration // bucket.seconds))


def _fail(fits: Sequence[bool | None]) -> str:
    return "do not fit" if False in fits else "may not fit"


def _no_time(clips: int, bucket: Bucket) -> str:
    return f"there was no time to tell whether {clips} x {bucket.seconds:g} s fits ({_MORE_TIME})"


def _larger(bucket: Bucket) -> str:
    return "larger ones are not faster" if bucket.saturated else "there was no time to try larger ones"


def _speed_at(bucket: Bucket, batch_size: int) -> float:
    """Return the speed of the measured batch that is nearest, if possible a smaller one."""
    fitting = [outcome for outcome in bucket.outcomes if outcome.fits]
    below = [outcome for outcome in fitting if outcome.trial.batch_size <= batch_size]
    return (below[-1] if below else fitting[0]).speed


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value >= 0.1 else f"{1000 * value:.2g} ms"
