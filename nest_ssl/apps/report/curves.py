"""Long series made short enough to draw: every spike stays, and a running mean shows the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nest_ssl.apps.report.events import Series

BUCKETS = 300  # of a curve; each keeps its smallest and its largest value, and a chart is about 400 points wide
MEAN_FROM = 30  # numbers, below which a running mean says no more than they do
MEAN_SHARE = 50  # one part in so many of the numbers is averaged


@dataclass(frozen=True)
class Curve:
    """What is drawn of a series: places along the axis, values there, and the mean around them (None if too few)."""

    x: np.ndarray
    y: np.ndarray
    mean: np.ndarray | None
    times: np.ndarray
    not_finite: np.ndarray  # places of NaN and infinite values


def curve_of(series: Series, x: np.ndarray, *, mean: bool = True) -> Curve:
    """`x` are the series' places along the axis: its steps, or hours."""
    finite = np.isfinite(series.values)
    places, values, times = x[finite], series.values[finite], series.times[finite]
    averaged = max(5, len(values) // MEAN_SHARE) | 1  # odd, so that it lies evenly around its place
    means = running_mean(values, averaged) if mean and len(values) >= MEAN_FROM else None
    chosen = extremes(values, BUCKETS)
    return Curve(
        places[chosen],
        values[chosen],
        None if means is None else means[chosen],
        times[chosen],
        np.unique(x[~finite]),
    )


def extremes(values: np.ndarray, buckets: int) -> np.ndarray:
    """Indices of the first and last value and of the smallest and largest in each of so many equal parts, in order."""
    if len(values) <= 2 * buckets:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), buckets + 1).astype(int)
    starts = edges[:-1]
    found = [
        start + extreme(part)
        for start, part in zip(starts, np.split(values, edges[1:-1]), strict=True)
        for extreme in (np.argmin, np.argmax)
    ]
    return np.unique([0, *found, len(values) - 1])


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean of `width` values around each; of fewer at the ends."""
    window = np.ones(width)  # not by a running sum, which never recovers from one huge value
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
