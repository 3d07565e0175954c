"""One chart of curves: long series are thinned so that every spike stays, and a running mean shows the trend."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from nest_ssl.apps.pages.charts import BOTTOM, HEIGHT, LEFT, PARTS, RIGHT, TOP, WIDTH, Axis, Panel, padded, svg
from nest_ssl.apps.pages.text import Words
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.texts import words

BUCKETS = 300  # of a curve; each keeps its smallest and its largest value, and a chart is about 400 points wide
MEAN_FROM = 30  # values; a shorter series needs no running mean
MEAN_SHARE = 50  # the running mean averages one value in so many
_LINE = 13  # height of a line of text
_DOTS_UP_TO = 40  # points; longer curves are drawn without dots


@dataclass(frozen=True)
class Curve:
    """The points of a series that are drawn, in which of the colours, and with which dashes: 0 is a full line."""

    name: Words
    x: np.ndarray  # steps
    y: np.ndarray
    mean: np.ndarray | None  # running mean; None for a short series
    not_finite: np.ndarray  # steps with NaN and infinite values
    colour: int = 0
    dash: int = 0


@dataclass(frozen=True)
class Chart:
    """The content of one chart; `restarts` are steps, `levels` thresholds with their names."""

    curves: Sequence[Curve]
    restarts: Sequence[float] = ()
    levels: Sequence[tuple[float, Words]] = ()
    share: bool = False  # values from 0 to 1, shown as per cent


def curve_chart(chart: Chart, caption: str) -> Markup:
    """Draw curves, thresholds and restarts in one panel."""
    panel = _panel(chart)
    panel.grid(panel.y.ticks(PARTS), lambda value: f"{value * 100:.4g}%" if chart.share else f"{value:.6g}")
    panel.labels_below([value for value in panel.x.ticks(PARTS) if value == int(value)], lambda step: f"{step:,.6g}")
    panel.text(words("axis_steps"), LEFT - 8, BOTTOM + 21, "end")
    panel.upright([step for step in chart.restarts if panel.x.low < step < panel.x.high], "restart")
    for curve in chart.curves:
        _draw(curve, panel)
    _levels(chart, panel)  # last: their names must be legible where curves cross them
    panel.draw("path", style="guide", d="")
    return svg(WIDTH, HEIGHT, caption, panel, style="chart narrow", focusable=True)


def _panel(chart: Chart) -> Panel:
    places = np.concatenate([curve.x for curve in chart.curves])
    values = [*np.concatenate([curve.y for curve in chart.curves]).tolist(), *(value for value, _ in chart.levels)]
    bottom, top = padded(values, 0.06, 0.05)
    if bottom < 0 <= min(values):
        bottom = 0.0  # no room below 0 for what is never negative
    first, last = float(places.min()), float(places.max())
    steps = (first, last) if last > first else (first - 0.5, last + 0.5)
    return Panel(Axis(*steps, LEFT, RIGHT), Axis(bottom, top, BOTTOM, TOP))


def _levels(chart: Chart, panel: Panel) -> None:
    """Draw a line for each threshold, with its name below it, or below the name before if that is close."""
    for value, _ in chart.levels:
        panel.across(value, "level")
    base = -math.inf  # of the name before
    for value, name in sorted(chart.levels, key=lambda level: -level[0]):
        y = panel.y.place(value)
        base = max(y + _LINE if y + _LINE <= BOTTOM else y - 4, base + _LINE)
        panel.text(name, RIGHT - 4, base, "end level-name")


def _draw(curve: Curve, panel: Panel) -> None:
    style = f"colour-{curve.colour} dash-{curve.dash}"
    if curve.mean is not None:
        panel.line(curve.x, curve.y, f"raw {style}")
    panel.line(curve.x, curve.y if curve.mean is None else curve.mean, f"mean {style}")
    if curve.mean is None and len(curve.x) <= _DOTS_UP_TO:
        panel.dots(curve.x, curve.y, f"dots {style}")
    if len(curve.not_finite):
        places = panel.x.places(curve.not_finite) - 3
        panel.draw("path", style="not-finite", d="".join(f"M{x:.1f} {TOP - 6:g}l6 6m0-6l-6 6" for x in places))


def reading_data(chart: Chart) -> str:
    """Return what the script needs to read a chart by pointer or keyboard, rounded to what one can see."""
    panel = _panel(chart)
    lines = [
        {
            **{language: name.unescape() for language, name in curve.name.languages},
            "x": _rounded(curve.x, 7),
            "y": _rounded(curve.y, 5),
            "m": None if curve.mean is None else _rounded(curve.mean, 5),
        }
        for curve in chart.curves
    ]
    places = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM, "from": panel.x.low, "to": panel.x.high}
    return json.dumps({**places, "share": chart.share, "lines": lines}, ensure_ascii=False, separators=(",", ":"))


def _rounded(values: np.ndarray, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def curve_of(series: Series, name: Words, *, mean: bool = True, colour: int = 0, dash: int = 0) -> Curve:
    """Thin a series to the points that are drawn; `mean` asks for a running mean."""
    finite = series.finite
    averaged = max(5, len(finite) // MEAN_SHARE) | 1  # odd, so that it is centred
    means = running_mean(finite.values, averaged) if mean and len(finite) >= MEAN_FROM else None
    chosen = extremes(finite.values, BUCKETS)
    return Curve(
        name,
        finite.steps[chosen].astype(np.float64),
        finite.values[chosen],
        None if means is None else means[chosen],
        np.unique(series.steps[~np.isfinite(series.values)]),
        colour,
        dash,
    )


def extremes(values: np.ndarray, buckets: int) -> np.ndarray:
    """Return the indices of the first, the last, and each bucket's smallest and largest value, in order."""
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
    """Return the mean of `width` values around each value; of fewer at the ends."""
    window = np.ones(width)  # not by a running sum, which never recovers from one huge value
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
