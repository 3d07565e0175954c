"""One chart of curves: long series are thinned so that every spike stays, and a running mean shows the trend."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from nest_ssl.apps.pages.charts import BOTTOM, HEIGHT, LEFT, PARTS, RIGHT, TOP, WIDTH, Axis, Panel, svg
from nest_ssl.apps.pages.text import Words
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.texts import words

BUCKETS = 300  # of a curve; each keeps its smallest and its largest value, and a chart is about 400 points wide
MEAN_FROM = 30  # values; a shorter series needs no running mean
MEAN_SHARE = 50  # the running mean averages one value in so many
_LINE, _LETTER = 13, 6.5  # height of a line of text, and about the width of a letter
_DOTS_UP_TO = 40  # points; longer curves are drawn without dots


@dataclass(frozen=True)
class Curve:
    """The points of a series that are drawn, and their running mean (None for a short series)."""

    x: np.ndarray
    y: np.ndarray
    mean: np.ndarray | None
    times: np.ndarray
    not_finite: np.ndarray  # places of NaN and infinite values


@dataclass(frozen=True)
class Line:
    """One curve of a chart: its name, which of the colours, and which dashes: 0 is a full line."""

    name: Words
    colour: int
    curve: Curve
    dash: int = 0
    breaks: Sequence[float] = ()  # places where the line is interrupted


@dataclass(frozen=True)
class Chart:
    """The content of one chart; `marks` are places of restarts, `levels` thresholds with their names."""

    lines: Sequence[Line]
    marks: Sequence[float] = ()
    levels: Sequence[tuple[float, Words]] = ()
    hours: bool = False  # on the x axis, instead of steps
    share: bool = False  # values from 0 to 1, shown as per cent


def curve_chart(chart: Chart, caption: str, *, logarithmic: bool = False, style: str = "narrow") -> Markup:
    """Draw curves, thresholds and restarts in one panel."""
    panel = _panel(chart, logarithmic)
    _axes(chart, panel)
    panel.upright([mark for mark in chart.marks if panel.x.low < mark < panel.x.high], "restart")
    for line in chart.lines:
        _line(line, panel)
    _levels(chart, panel)  # last: their names must be legible where curves cross them
    panel.draw("path", style="guide", d="")
    return svg(WIDTH, HEIGHT, caption, panel, style=f"chart {style}", focusable=True)


def can_be_logarithmic(chart: Chart) -> bool:
    """Say whether all values are above 0 and span more than a factor of two; otherwise there is nothing to gain."""
    values = np.concatenate([line.curve.y for line in chart.lines])
    positive = values.min(initial=np.inf) > 0 and all(value > 0 for value, _ in chart.levels)
    return bool(len(values)) and positive and values.max() > 2 * values.min()


def _panel(chart: Chart, logarithmic: bool) -> Panel:
    places = np.concatenate([line.curve.x for line in chart.lines] or [np.zeros(1)])
    values = np.concatenate([line.curve.y for line in chart.lines] or [np.zeros(1)])
    levels = [value for value, _ in chart.levels]
    low, high = float(min([*values, *levels])), float(max([*values, *levels]))
    if logarithmic:
        low, high = math.log10(low), math.log10(high)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    near_zero = not logarithmic and 0 <= low < margin  # no room below 0 for what is never negative
    y = Axis(0.0 if near_zero else low - margin, high + margin, BOTTOM, TOP, logarithmic)
    first, last = float(places.min()), float(places.max())
    return Panel(Axis(*((first, last) if last > first else (first - 0.5, last + 0.5)), LEFT, RIGHT), y)


def _axes(chart: Chart, panel: Panel) -> None:
    panel.grid(panel.y.ticks(PARTS), lambda value: _value(value, chart.share))
    ticks = [value for value in panel.x.ticks(PARTS) if chart.hours or value == int(value)]
    panel.labels_below(ticks, lambda value: f"{value:g}" if chart.hours else _short(value))
    panel.text(words("axis_hours" if chart.hours else "axis_steps"), LEFT - 8, BOTTOM + 21, "end")


def _levels(chart: Chart, panel: Panel) -> None:
    """Draw a line for each threshold; its name is on the right, or on the left if there is no room for it.

    Where neither side has room, the name moves down. One longer than half a line takes both sides.
    """
    names: list[tuple[Words, float, float, str]] = []
    lowest = {"end": -math.inf, "start": -math.inf}  # name so far, on either side
    for value, name in sorted(chart.levels, key=lambda level: -level[0]):
        panel.across(value, "level")
        y = panel.y.place(value)
        base = y + _LINE if y + _LINE <= BOTTOM else y - 4
        is_long = len(name.english) * _LETTER > (RIGHT - LEFT) / 2
        sides = {"end": max(lowest.values())} if is_long else lowest
        with_room = [side for side, taken in sides.items() if base - taken >= _LINE]
        anchor = with_room[0] if with_room else min(sides, key=lambda side: sides[side])
        base = max(base, sides[anchor] + _LINE)
        lowest = dict.fromkeys(lowest, base) if is_long else {**lowest, anchor: base}
        names.append((name, RIGHT - 4 if anchor == "end" else LEFT + 4, base, f"{anchor} level-name"))
    for placed in names:  # after all lines, which would cross them
        panel.text(*placed)


def _line(line: Line, panel: Panel) -> None:
    curve, style = line.curve, f"colour-{line.colour} dash-{line.dash}"
    if curve.mean is not None:
        panel.line(curve.x, curve.y, f"raw {style}", line.breaks)
    panel.line(curve.x, curve.y if curve.mean is None else curve.mean, f"mean {style}", line.breaks)
    if curve.mean is None and len(curve.x) <= _DOTS_UP_TO:
        panel.dots(curve.x, curve.y, f"dots {style}")
    if len(curve.not_finite):
        places = panel.x.places(curve.not_finite) - 3
        panel.draw("path", style="not-finite", d="".join(f"M{x:.1f} {TOP - 6:g}l6 6m0-6l-6 6" for x in places))


def reading_data(chart: Chart) -> str:
    """Return what the script needs to read a chart by pointer or keyboard, rounded to what one can see."""
    panel = _panel(chart, logarithmic=False)
    lines = []
    for line in chart.lines:
        curve = line.curve
        entry = {
            **{language: name.unescape() for language, name in line.name.languages},
            "x": _rounded(curve.x, 7),
            "y": _rounded(curve.y, 5),
            "t": np.round(curve.times).astype(np.int64).tolist(),
        }
        if curve.mean is not None:
            entry["m"] = _rounded(curve.mean, 5)
        lines.append(entry)
    places = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM, "from": panel.x.low, "to": panel.x.high}
    described = {**places, "hours": chart.hours, "share": chart.share, "lines": lines}
    return json.dumps(described, ensure_ascii=False, separators=(",", ":"))


def _rounded(values: np.ndarray, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def _value(value: float, share: bool) -> str:
    return f"{value * 100:.4g}%" if share else f"{value:.6g}" if abs(value) < 1e5 else _short(value)


def _short(value: float) -> str:
    """Return 12,000 as 12k: several labels stand below every chart."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def curve_of(series: Series, x: np.ndarray, *, mean: bool = True) -> Curve:
    """Return the curve of a series whose places on the x axis are `x`: its steps, or hours."""
    finite = np.isfinite(series.values)
    places, values, times = x[finite], series.values[finite], series.times[finite]
    averaged = max(5, len(values) // MEAN_SHARE) | 1  # odd, so that it is centred
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
