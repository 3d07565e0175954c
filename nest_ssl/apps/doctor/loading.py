"""How long the loader takes for a batch of the user's own data, and how many processes keep up with the steps."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

KEEPS_UP = 0.05  # of a step may be spent waiting
_BATCHES = 24
_FEWEST_BATCHES = 3
_WORTH_TRYING = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Loading:
    """Seconds from batch to batch with so many loader processes."""

    workers: int
    seconds: float


@dataclass(frozen=True)
class Workers:
    """What was measured, and the fewest processes that keep up with a step; the best of those tried if none does."""

    tried: tuple[Loading, ...]
    step: float  # seconds
    best: Loading
    keeps_up: bool
    cut_short: bool = False  # no time was left to try all that might have helped


def choose_workers(
    measure: Callable[[int], Loading], step: float, *, most: int, remaining: Callable[[], float]
) -> Workers:
    """Measure without processes, then with more and more until loading hides behind the step.

    Without processes all of the loading adds to the step; with some, only what takes longer than a step does.
    """
    alone = measure(0)
    tried = [alone]
    if alone.seconds <= KEEPS_UP * step:
        return Workers(tuple(tried), step, alone, keeps_up=True)
    enough = min(most, math.ceil(alone.seconds / step))
    cut_short = False
    for count in [*(count for count in _WORTH_TRYING if enough <= count < most), *([most] if most else [])]:
        if remaining() <= 0:
            cut_short = True
            break
        tried.append(measure(count))
        if tried[-1].seconds <= step:
            return Workers(tuple(tried), step, tried[-1], keeps_up=True)
    best = min(tried, key=lambda one: max(one.seconds, step) if one.workers else one.seconds + step)
    return Workers(tuple(tried), step, best, keeps_up=False, cut_short=cut_short)


def time_loader(loader: DataLoader[Any], workers: int, seconds: float) -> Loading:
    """Batches from the loader for at most so many seconds; the first, for which processes start, does not count.

    Unless it is the only one.
    """
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that the data draws from
    began = time.perf_counter()
    batches = iter(loader)
    next(batches, None)
    ahead = workers * (loader.prefetch_factor or 2) if workers else 0  # made while the first was waited for
    arrived = [time.perf_counter()]
    for _ in itertools.islice(batches, _BATCHES + ahead):
        arrived.append(time.perf_counter())
        if len(arrived) > _FEWEST_BATCHES + ahead and arrived[-1] - arrived[0] > seconds:
            break
    del batches
    if len(arrived) == 1:
        return Loading(workers, arrived[0] - began)
    arrived = arrived[min(ahead, len(arrived) // 2) :]
    return Loading(workers, (arrived[-1] - arrived[0]) / max(1, len(arrived) - 1))
