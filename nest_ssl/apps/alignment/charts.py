"""The charts of the HTML report as inline SVG: errors on a logarithmic scale, and curves of both sides.

A difference of exactly 0 has no place on a logarithmic scale, so it has a lane of its own at the bottom; what could not
be compared has one at the top.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from nest_ssl.apps.alignment.compare import CurveName, CurvePoint
from nest_ssl.apps.alignment.sections import Compared, Tolerance
from nest_ssl.apps.alignment.texts import difference, measured, words
from nest_ssl.apps.pages.svg import Frame, round_values, svg, text, tick
from nest_ssl.apps.pages.text import Words, escaped

SYMBOLS = {"identical": "=", "within": "≈", "different": "≠"}
_FEWEST_DECADES, _MOST_TICKS = 4, 6
_CHARACTER = 6.4  # width of one at the charts' font size


@dataclass(frozen=True)
class Point:
    """One difference: where it stands, what a reader is told about it."""

    value: float
    state: str
    title: str


@dataclass(frozen=True)
class ErrorScale:
    """Differences by their power of ten."""

    low: int
    high: int

    @classmethod
    def over(cls, values: Iterable[float], also: float) -> ErrorScale:
        shown = [math.log10(value) for value in (*values, also) if 0 < value < math.inf]
        low, high = math.floor(min(shown, default=-8)), math.ceil(max(shown, default=-4))
        missing = max(_FEWEST_DECADES - (high - low), 0)
        return cls(low - missing + missing // 2, high + missing // 2)

    def y(self, value: float, frame: Frame) -> float:
        if value == 0:
            return frame.bottom + 24
        if not math.isfinite(value):
            return frame.top - 26
        height = (math.log10(value) - self.low) / (self.high - self.low)
        return frame.bottom - height * (frame.bottom - frame.top)

    @property
    def ticks(self) -> range:
        return range(self.low, self.high + 1, math.ceil((self.high - self.low) / _MOST_TICKS))


def state_of(item: Compared) -> str:
    """`identical`, `within` or `different`: also the names of their styles and symbols."""
    return "identical" if item.identical else "within" if item.within else "different"


def layer_chart(items: Sequence[Compared], scale: ErrorScale, atol: float, caption: str) -> str:
    """Error of each layer in the order of data; the first one that diverges is marked with its name."""
    frame = Frame(left=80, right=948, top=60, bottom=258)
    points = [_layer_point(position, item) for position, item in enumerate(items, start=1)]
    parts = [*_bands(items, frame), *_error_panel(points, scale, frame, atol), *_first_mark(items, scale, frame)]
    return svg(960, 318, caption, parts, "wide")


def curve_chart(curve: Sequence[CurvePoint], name: CurveName, tolerance: Tolerance, caption: str) -> str:
    """NeMo's curve (pale, thick) under ours (dark, dashed), and their difference below."""
    upper, lower = Frame(80, 468, 14, 150), Frame(80, 468, 200, 270)
    pairs, steps = [getattr(point, name) for point in curve], [point.step for point in curve]
    points = [_curve_point(point, name, tolerance) for point in curve]
    scale = ErrorScale.over((point.value for point in points), tolerance.atol)
    parts = [
        *_curves(pairs, upper),
        *_error_panel(points, scale, lower, None, hover_from=upper.top),
        *_step_ticks(steps, lower),
    ]
    return svg(480, 326, caption, parts, "narrow")


def _layer_point(position: int, item: Compared) -> Point:
    state = state_of(item)
    title = f"{position}. {item.name}\n{SYMBOLS[state]} |Δ| {difference(item.max_abs)}"
    if not item.identical:
        title += f", |Δ|/max {difference(item.max_rel)}"
    return Point(item.max_abs, state, title)


def _curve_point(point: CurvePoint, name: CurveName, tolerance: Tolerance) -> Point:
    apart = point.difference(name)
    state = "identical" if apart == 0 else "within" if point.agrees(name, tolerance) else "different"
    theirs, ours = getattr(point, name)
    values = f"NeMo {measured(theirs)}\nnest_ssl {measured(ours)}"
    return Point(apart, state, f"{point.step}: {SYMBOLS[state]} |Δ| {difference(apart)}\n{values}")


def _error_panel(
    points: Sequence[Point], scale: ErrorScale, frame: Frame, atol: float | None, hover_from: float | None = None
) -> Iterator[str]:
    """Scale, lanes, a mark for every point, and a column over each that tells its name."""
    for power in scale.ticks:
        yield from tick(f"1e{power:+03d}", scale.y(10.0**power, frame) if power > -308 else frame.bottom, frame)
    yield from _lane("0", words("exactly_equal"), scale.y(0, frame), frame)
    if any(not math.isfinite(point.value) for point in points):
        yield from _lane("∞", words("not_comparable"), scale.y(math.inf, frame), frame)
    if atol:
        y = scale.y(atol, frame)
        yield f'<path class="tolerance" d="M{frame.left:g} {y:.1f}H{frame.right:g}"/>'
    yield from _marks(points, scale, frame)
    if atol:
        y = scale.y(atol, frame) - 5
        yield f'<text class="tolerance-label" x="{frame.left + 4:g}" y="{y:.1f}">atol {atol:g}</text>'
    top, width = frame.top - 34 if hover_from is None else hover_from, frame.column(len(points))
    yield '<g class="columns">'
    for index, point in enumerate(points):
        x = frame.left + index * width
        yield (
            f'<rect x="{x:.1f}" y="{top:g}" width="{width:.2f}" height="{frame.bottom + 34 - top:g}">'
            f"<title>{escaped(point.title)}</title></rect>"
        )
    yield "</g>"


def _marks(points: Sequence[Point], scale: ErrorScale, frame: Frame) -> Iterator[str]:
    """A dot for equal, a ring for within tolerance, a diamond for beyond: told apart without colour. One path each."""
    r = round(min(max(frame.column(len(points)), 1.8), 3.5), 1)
    shapes = {
        "identical": "h0",
        "within": f"m-{r} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0-{2 * r} 0",
        "different": f"m0-{r}l{r} {r}l-{r} {r}l-{r}-{r}z",
    }
    paths: dict[str, list[str]] = {state: [] for state in shapes}
    stems: dict[str, list[str]] = {state: [] for state in shapes}
    for index, point in enumerate(points):
        x, y = frame.x(index, len(points)), scale.y(point.value, frame)
        paths[point.state].append(f"M{x:.1f} {y:.1f}{shapes[point.state]}")
        if point.value != 0:
            stems[point.state].append(f"M{x:.1f} {y:.1f}V{frame.bottom:g}")
    yield from (f'<path class="stem {state}" d="{"".join(of)}"/>' for state, of in stems.items() if of)
    yield from (f'<path class="mark {state}" d="{"".join(of)}"/>' for state, of in paths.items() if of)


def _bands(items: Sequence[Compared], frame: Frame) -> Iterator[str]:
    """Stripes behind the layers of one block, with its name below where there is room."""
    x, height = frame.left, frame.bottom - frame.top + 34
    for number, (block, of) in enumerate(groupby(items, key=lambda item: _block(item.name))):
        width = len(list(of)) * frame.column(len(items))
        if number % 2 == 0:
            yield f'<rect class="band" x="{x:.1f}" y="{frame.top:g}" width="{width:.1f}" height="{height:g}"/>'
        short = block.rpartition(".")[2]
        label = next((text for text in (block, short) if len(text) * _CHARACTER < width), None)
        if label:
            yield f'<text class="middle" x="{x + width / 2:.1f}" y="{frame.bottom + 50:g}">{escaped(label)}</text>'
        x += width


def _block(name: str) -> str:
    """`encoder.layers.3` of all that is in it; else the first part of the name, or two for an encoder's."""
    numbered = re.match(r"(.+?\.)?layers\.\d+", name)
    if numbered:
        return numbered[0]
    parts = name.split(" ")[0].split(".")
    return ".".join(parts[:2]) if parts[0] == "encoder" else parts[0]


def _first_mark(items: Sequence[Compared], scale: ErrorScale, frame: Frame) -> Iterator[str]:
    """The first mismatch, or the first difference where all are within tolerance."""
    states = [state_of(item) for item in items]
    wanted = next((state for state in ("different", "within") if state in states), None)
    if wanted is None:
        return
    index = states.index(wanted)
    x = frame.x(index, len(items))
    anchor, shift = ("start", 6) if x < (frame.left + frame.right) / 2 else ("end", -6)
    name = items[index].name
    label = f"{SYMBOLS[wanted]} {name if len(name) <= 68 else '…' + name[-67:]}"
    yield f'<path class="first {wanted}" d="M{x:.1f} 6V{scale.y(0, frame):g}"/>'
    yield f'<text class="first-label {anchor} {wanted}" x="{x + shift:.1f}" y="16">{escaped(label)}</text>'


def _curves(pairs: Sequence[tuple[float, float]], frame: Frame) -> Iterator[str]:
    finite = [value for pair in pairs for value in pair if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    margin = (high - low) * 0.08 or abs(high) * 0.01 or 1.0
    low, high = low - margin, high + margin
    span = high - low
    for value in round_values(low, high):
        yield from tick(f"{value:.6g}", frame.bottom - (value - low) / span * (frame.bottom - frame.top), frame)
    for side, style in enumerate(("nemo", "ours")):
        path, dots, drawing = [], [], False
        for index, pair in enumerate(pairs):
            if not math.isfinite(pair[side]):
                drawing = False
                continue
            y = frame.bottom - (pair[side] - low) / span * (frame.bottom - frame.top)
            place = f"{frame.x(index, len(pairs)):.1f} {y:.1f}"
            path.append(f"{'L' if drawing else 'M'}{place}")
            dots.append(f"M{place}h0")
            drawing = True
        yield f'<path class="curve {style}" d="{"".join(path)}"/>'
        if len(pairs) <= 40:
            yield f'<path class="dots {style}" d="{"".join(dots)}"/>'


def _step_ticks(steps: Sequence[int], frame: Frame) -> Iterator[str]:
    """Every step, or every 2nd, 5th, 10th, ... of them."""
    y = frame.bottom + 48
    every = next(n for n in (times * 10**power for power in range(9) for times in (1, 2, 5)) if len(steps) / n <= 10)
    for index in range(0, len(steps), every):
        yield f'<text class="middle" x="{frame.x(index, len(steps)):.1f}" y="{y:g}">{steps[index]}</text>'


def _lane(label: str, meaning: Words, y: float, frame: Frame) -> Iterator[str]:
    yield f'<path class="lane" d="M{frame.left:g} {y:.1f}H{frame.right:g}"/>'
    yield f'<text class="end strong" x="{frame.left - 8:g}" y="{y:.1f}">{label}</text>'
    yield from text(meaning, frame.left - 8, y + 11, "end tiny")
