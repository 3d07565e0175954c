"""Measure how long the loader takes for a batch of the user's data, and how many workers keep up with the steps."""

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

KEEPS_UP = 0.05  # share of a step that may be spent waiting for data
_BATCHES = 24
_FEWEST_BATCHES = 3
_WORTH_TRYING = (1, 2, 4, 8, 16)


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
    cut_short: bool = False  # there was no time to try all numbers of workers


def choose_workers(
    measure: Callable[[int], Loading], step: float, *, most: int, remaining: Callable[[], float]
) -> Workers:
    """Measure without workers, then with more and more until loading is as fast as the steps.

    Without workers the whole loading time adds to the step; with workers, only the part that exceeds the step.
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
    """Time batches of the loader for about `seconds`, without the first, which includes the start of the workers.

    If the first batch is the only one, its time counts.
    """
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that the data draws from
    began = time.perf_counter()
    batches = iter(loader)
    next(batches, None)
    ahead = workers * (loader.prefetch_factor or 2) if workers else 0  # prefetched while the first was awaited
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
