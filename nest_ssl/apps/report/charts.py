"""The charts of a run's report as inline SVG: curves over steps or hours, and histograms of durations."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.apps.pages.svg import Frame, round_values, svg, text, tick
from nest_ssl.apps.pages.text import Html, Words
from nest_ssl.apps.report.curves import Curve
from nest_ssl.apps.report.texts import words

_WIDTH, _HEIGHT = 480, 226
_PARTS = 6  # of an axis, at most
_FRAME = Frame(left=58, right=468, top=16, bottom=196)
_LINE, _LETTER = 13, 6.5  # height of a line of text and, about, width of a letter
COLOURS = 8  # that the style sheet has
_DOTS_UP_TO = 40  # points, beyond which a line is enough


@dataclass(frozen=True)
class Line:
    """One curve of a chart: its name, which of the colours, and how it is dashed: 0 is not at all."""

    name: Words
    colour: int
    curve: Curve
    dash: int = 0
    breaks: Sequence[float] = ()  # places where it begins anew


@dataclass(frozen=True)
class Chart:
    """What is drawn into one frame. `marks` are places of restarts, `levels` values that mean something."""

    lines: Sequence[Line]
    marks: Sequence[float] = ()
    levels: Sequence[tuple[float, Words]] = ()
    hours: bool = False  # along the axis, rather than steps
    share: bool = False  # values from 0 to 1, read as per cent


@dataclass(frozen=True)
class _Scale:
    """From values to places, linear or logarithmic."""

    x: tuple[float, float]
    y: tuple[float, float]
    logarithmic: bool

    def across(self, value: np.ndarray | float) -> np.ndarray:
        low, high = self.x
        return _FRAME.left + (np.asarray(value, dtype=np.float64) - low) / (high - low) * (_FRAME.right - _FRAME.left)

    def up(self, value: np.ndarray | float) -> np.ndarray:
        values = np.asarray(value, dtype=np.float64)
        low, high = self.y
        if self.logarithmic:
            values = np.log10(np.where(values > 0, values, np.nan))
        return _FRAME.bottom - (values - low) / (high - low) * (_FRAME.bottom - _FRAME.top)


def curve_chart(chart: Chart, caption: str, *, logarithmic: bool = False, style: str = "narrow") -> str:
    """Curves, levels and marks in one frame."""
    scale = _scale(chart, logarithmic)
    parts = [*_axes(chart, scale), *_marks(chart, scale)]
    for line in chart.lines:
        parts += _line(line, scale)
    parts += _levels(chart, scale)  # last: their names must be legible where curves cross them
    parts.append('<path class="guide" d=""/>')
    return svg(_WIDTH, _HEIGHT, caption, parts, f"chart {style}", ' tabindex="0"')


def can_be_logarithmic(chart: Chart) -> bool:
    """All values above 0, and over more than a factor of two: else there is nothing to gain."""
    values = np.concatenate([line.curve.y for line in chart.lines])
    positive = values.min(initial=np.inf) > 0 and all(value > 0 for value, _ in chart.levels)
    return bool(len(values)) and positive and values.max() > 2 * values.min()


def histogram(counts: np.ndarray, edges: np.ndarray, caption: str, limits: tuple[float, float]) -> str:
    """Numbers of utterances by their seconds; what the configuration leaves out is pale."""
    frame, most = _FRAME, max(int(counts.max()), 1)
    low, high = float(edges[0]), float(edges[-1])

    def across(seconds: float) -> float:
        return frame.left + (seconds - low) / (high - low) * (frame.right - frame.left)

    parts: list[str] = []
    for value in round_values(0, most * 1.05):
        if value == int(value):
            parts += tick(f"{int(value):,}", frame.bottom - value / (most * 1.05) * (frame.bottom - frame.top), frame)
    for value in round_values(low, high, _PARTS):
        parts.append(f'<text class="middle" x="{across(value):.1f}" y="{frame.bottom + 21:g}">{value:g}</text>')
    bars, columns = [], []
    for count, left, right in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        x, width = across(left), across(right) - across(left)
        height = count / (most * 1.05) * (frame.bottom - frame.top)
        outside = right <= limits[0] or left >= limits[1]
        bars.append(
            f'<rect class="bar{" outside" if outside else ""}" x="{x + 0.5:.1f}" y="{frame.bottom - height:.1f}" '
            f'width="{max(width - 1, 0.5):.2f}" height="{height:.1f}"/>'
        )
        columns.append(
            f'<rect x="{x:.1f}" y="{frame.top:g}" width="{width:.2f}" height="{frame.bottom - frame.top:g}">'
            f"<title>{left:.3g} – {right:.3g} s: {count:,}</title></rect>"
        )
    parts += [*bars, *text(words("axis_seconds"), frame.left - 8, frame.bottom + 21, "end")]
    parts.append(f'<g class="columns">{"".join(columns)}</g>')
    return svg(_WIDTH, _HEIGHT, caption, parts, "narrow")


def _scale(chart: Chart, logarithmic: bool) -> _Scale:
    places = np.concatenate([line.curve.x for line in chart.lines] or [np.zeros(1)])
    values = np.concatenate([line.curve.y for line in chart.lines] or [np.zeros(1)])
    levels = [value for value, _ in chart.levels]
    low, high = float(min([*values, *levels])), float(max([*values, *levels]))
    if logarithmic:
        low, high = math.log10(low), math.log10(high)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    touches_zero = not logarithmic and 0 <= low < margin
    bottom = 0.0 if touches_zero else low - margin  # nothing that is never negative is given room below 0
    first, last = float(places.min()), float(places.max())
    return _Scale((first, last) if last > first else (first - 0.5, last + 0.5), (bottom, high + margin), logarithmic)


def _axes(chart: Chart, scale: _Scale) -> Iterator[str]:
    low, high = scale.y
    for value in _powers(low, high) if scale.logarithmic else round_values(low, high, _PARTS):
        yield from tick(_value(value, chart.share), float(scale.up(value)), _FRAME)
    for value in round_values(*scale.x, _PARTS):
        if chart.hours or value == int(value):
            label = f"{value:g}" if chart.hours else _short(value)
            yield f'<text class="middle" x="{float(scale.across(value)):.1f}" y="{_FRAME.bottom + 21:g}">{label}</text>'
    yield from text(words("axis_hours" if chart.hours else "axis_steps"), _FRAME.left - 8, _FRAME.bottom + 21, "end")


def _powers(low: float, high: float) -> Iterator[float]:
    """Round values for a logarithmic scale, closer together the fewer decades it has."""
    digits = (1, 2, 5) if high - low < 3 else (1,)
    if high - low < 0.7:
        yield from round_values(10**low, 10**high, _PARTS)
        return
    every = max(1, math.ceil((high - low) / 6))
    for power in range(math.floor(low), math.ceil(high) + 1, every):
        yield from (digit * 10.0**power for digit in digits if low <= math.log10(digit * 10.0**power) <= high)


def _marks(chart: Chart, scale: _Scale) -> Iterator[str]:
    """A dashed line where the run was started again."""
    inside = [float(scale.across(mark)) for mark in chart.marks if scale.x[0] < mark < scale.x[1]]
    if inside:
        path = "".join(f"M{x:.1f} {_FRAME.top:g}V{_FRAME.bottom:g}" for x in inside)
        yield f'<path class="restart" d="{path}"/>'


def _levels(chart: Chart, scale: _Scale) -> Iterator[str]:
    """A line across for each, from the top; its name is on the right, or on the left if there is no room for it.

    Where neither side has room, the name goes below those that are there. One longer than half a line takes both sides.
    """
    names: list[str] = []
    lowest = {"end": -math.inf, "start": -math.inf}  # name so far, on either side
    for value, name in sorted(chart.levels, key=lambda level: -level[0]):
        y = float(scale.up(value))
        yield f'<path class="level" d="M{_FRAME.left:g} {y:.1f}H{_FRAME.right:g}"/>'
        base = y + _LINE if y + _LINE <= _FRAME.bottom else y - 4
        is_long = len(name.english) * _LETTER > (_FRAME.right - _FRAME.left) / 2
        sides = {"end": max(lowest.values())} if is_long else lowest
        with_room = [side for side, taken in sides.items() if base - taken >= _LINE]
        anchor = with_room[0] if with_room else min(sides, key=lambda side: sides[side])
        base = max(base, sides[anchor] + _LINE)
        lowest = dict.fromkeys(lowest, base) if is_long else {**lowest, anchor: base}
        place = _FRAME.right - 4 if anchor == "end" else _FRAME.left + 4
        names += text(name, place, base, f"{anchor} level-name")
    yield from names  # after all lines, which would cross them


def _line(line: Line, scale: _Scale) -> Iterator[str]:
    curve, style = line.curve, f"colour-{line.colour} dash-{line.dash}"
    breaks = np.asarray(line.breaks, dtype=np.float64)
    if curve.mean is not None:
        yield f'<path class="curve raw {style}" d="{_path(curve.x, curve.y, scale, breaks)}"/>'
    shown = curve.y if curve.mean is None else curve.mean
    yield f'<path class="curve mean {style}" d="{_path(curve.x, shown, scale, breaks)}"/>'
    if curve.mean is None and len(curve.x) <= _DOTS_UP_TO:
        yield f'<path class="dots {style}" d="{_path(curve.x, curve.y, scale, None)}"/>'
    if len(curve.not_finite):
        crosses = "".join(f"M{x:.1f} {_FRAME.top - 6:g}l6 6m0-6l-6 6" for x in scale.across(curve.not_finite) - 3)
        yield f'<path class="not-finite" d="{crosses}"/>'


def _path(x: np.ndarray, y: np.ndarray, scale: _Scale, breaks: np.ndarray | None) -> str:
    """A line that begins anew after every break; with None for breaks, a dot at every point."""
    across, up = np.round(scale.across(x), 1).tolist(), np.round(scale.up(y), 1).tolist()
    piece = np.zeros(len(x)) if breaks is None else np.searchsorted(breaks, x, side="right")
    parts, before = [], None
    for place, height, number in zip(across, up, piece.tolist(), strict=True):
        if math.isnan(height):
            before = None
            continue
        begins = before != number or breaks is None
        parts.append(f"{'M' if begins else 'L'}{place:g} {height:g}{'h0' if breaks is None else ''}")
        before = number
    return "".join(parts)


def reading_data(chart: Chart) -> str:
    """What the script needs to read a chart by pointer or keyboard; values are rounded to what one can see."""
    first, last = _scale(chart, logarithmic=False).x
    lines = []
    for line in chart.lines:
        curve = line.curve
        entry = {
            **{language: html.unescape(name) for language, name in line.name.languages},
            "x": _rounded(curve.x, 7),
            "y": _rounded(curve.y, 5),
            "t": np.round(curve.times).astype(np.int64).tolist(),
        }
        if curve.mean is not None:
            entry["m"] = _rounded(curve.mean, 5)
        lines.append(entry)
    described = {
        "left": _FRAME.left,
        "right": _FRAME.right,
        "top": _FRAME.top,
        "bottom": _FRAME.bottom,
        "from": first,
        "to": last,
        "hours": chart.hours,
        "share": chart.share,
        "lines": lines,
    }
    return json.dumps(described, ensure_ascii=False, separators=(",", ":"))


def _rounded(values: np.ndarray, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def _value(value: float, share: bool) -> str:
    return f"{value * 100:.4g}%" if share else f"{value:.6g}" if abs(value) < 1e5 else _short(value)


def _short(value: float) -> str:
    """12,000 as 12k: there are a few of them below every chart."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def legend(names: Iterable[tuple[str, object]]) -> Html:
    """A piece of line and its name, for each of the styles."""
    entries = "".join(
        f'<span class="key"><svg class="sample" viewBox="0 0 34 10" aria-hidden="true">'
        f'<path class="curve mean {style}" d="M2 5H32"/></svg>{name}</span>'
        for style, name in names
    )
    return Html(f'<p class="legend">{entries}</p>')
