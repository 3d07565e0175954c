"""The charts of a comparison: the error of each layer on a logarithmic scale, and the curves of both sides.

A difference of exactly 0 has no place on a logarithmic scale, so zeros are drawn one step below it; what could not be
compared is drawn one step above.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from markupsafe import Markup

from nest_ssl.apps.alignment.compare import CurvePoint
from nest_ssl.apps.alignment.sections import Compared, Section
from nest_ssl.apps.alignment.texts import difference, measured, words
from nest_ssl.apps.pages.charts import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH, Axis, Panel, padded, positions, svg

SYMBOLS = {"identical": "=", "within": "≈", "different": "≠"}
_FEWEST_DECADES, _MOST_TICKS = 4, 6
_CHARACTER = 6.4  # width of one at the charts' font size
_DOTS_UP_TO = 40  # steps; longer curves are drawn without dots


def decades(values: Iterable[float], atol: float) -> tuple[int, int]:
    """Return the powers of ten that a scale of these differences and the tolerance begins and ends with."""
    shown = [math.log10(value) for value in (*values, atol) if 0 < value < math.inf]
    low, high = math.floor(min(shown, default=-8)), math.ceil(max(shown, default=-4))
    return min(low, high - _FEWEST_DECADES), high


def layer_chart(items: Sequence[Compared], scale: tuple[int, int], atol: float, caption: str) -> Markup:
    """Draw the error of each layer in the order of data; the first one that diverges is marked with its name."""
    low, high = scale
    panel = Panel(positions(len(items), 80, 948), Axis(low - 1, high + 1, 282, 34))
    _bands(items, panel)
    panel.grid(range(low, high + 1, math.ceil((high - low) / _MOST_TICKS)), lambda power: f"1e{int(power):+03d}")
    panel.grid([low - 1, high + 1], lambda power: "0" if power < low else "∞")
    panel.text(words("exactly_equal"), panel.x.start - 8, panel.y.start + 15, "end tiny")
    panel.text(words("not_comparable"), panel.x.start - 8, panel.y.end + 15, "end tiny")
    if atol:
        panel.across(math.log10(atol), "tolerance")
    _marks(items, [_power(item.max_abs, low, high) for item in items], panel)
    if atol:  # after the marks, which would cross it
        panel.text(f"atol {atol:g}", panel.x.start + 4, panel.y.place(math.log10(atol)) - 5, "tolerance-label")
    titles = [f"{position}. {item.name}\n{_amount(item)}" for position, item in enumerate(items, start=1)]
    panel.columns(_edges(items), titles, panel.y.end - 8, panel.y.start + 10)
    _first_mark(items, panel)
    return svg(960, 318, caption, panel, style="wide")


def curve_chart(curve: Sequence[CurvePoint], values: Section) -> Markup:
    """Draw NeMo's curve (pale, thick) under ours (dark, dashed); a pointer reads both values and their difference."""
    pairs = [getattr(point, values.name) for point in curve]
    y = Axis(*padded((value for pair in pairs for value in pair), 0.08, 0.01), BOTTOM, TOP)
    panel = Panel(positions(len(curve), 80, RIGHT), y)
    panel.grid(y.ticks(), lambda value: f"{value:.6g}")
    for side, numbers in zip(("nemo", "ours"), np.array(pairs, dtype=np.float64).T, strict=True):
        finite = np.where(np.isfinite(numbers), numbers, np.nan)
        panel.line(range(len(curve)), finite, side)
        if len(curve) <= _DOTS_UP_TO:
            panel.dots(range(len(curve)), finite, f"dots {side}")
    titles = [
        f"{point.step}: {_amount(item)}\nNeMo {measured(theirs)}\nnest_ssl {measured(ours)}"
        for point, item, (theirs, ours) in zip(curve, values.items, pairs, strict=True)
    ]
    panel.columns(_edges(curve), titles, TOP, BOTTOM)
    every = next(n for n in (times * 10**power for power in range(9) for times in (1, 2, 5)) if len(curve) / n <= 10)
    panel.labels_below(range(0, len(curve), every), lambda index: str(curve[int(index)].step))
    return svg(WIDTH, HEIGHT, f"curve-{values.name}", panel, style="narrow")


def _amount(item: Compared) -> str:
    return f"{SYMBOLS[item.state]} |Δ| {difference(item.max_abs)}, |Δ|/max {difference(item.max_rel)}"


def _edges(items: Sequence[object]) -> list[float]:
    return [place - 0.5 for place in range(len(items) + 1)]


def _power(value: float, low: int, high: int) -> float:
    """Return the power of ten at which a difference is drawn on the scale from `low` to `high`."""
    if value == 0:
        return low - 1
    return math.log10(value) if math.isfinite(value) else high + 1


def _marks(items: Sequence[Compared], powers: Sequence[float], panel: Panel) -> None:
    """Draw a dot for equal, a ring for within tolerance, a diamond for beyond: they differ without colour, too."""
    r = round(min(max((panel.x.end - panel.x.start) / max(len(items), 1), 1.8), 3.5), 1)
    shapes = {
        "identical": "h0",
        "within": f"m-{r} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0-{2 * r} 0",
        "different": f"m0-{r}l{r} {r}l-{r} {r}l-{r}-{r}z",
    }
    placed = list(zip(items, panel.x.places(range(len(items))), panel.y.places(powers), strict=True))
    for state, shape in shapes.items():  # one path for each kind
        marks = [f"M{x:.1f} {y:.1f}{shape}" for item, x, y in placed if item.state == state]
        if marks:
            panel.draw("path", style=f"mark {state}", d="".join(marks))


def _bands(items: Sequence[Compared], panel: Panel) -> None:
    """Draw stripes behind the layers of one block, with its name below where there is room."""
    first, height = 0, panel.y.start - panel.y.end + 10
    for number, (block, of) in enumerate(groupby(items, key=lambda item: _block(item.name))):
        count = len(list(of))
        left, right = panel.x.places([first - 0.5, first + count - 0.5]).tolist()
        first += count
        if number % 2 == 0:
            panel.draw("rect", style="band", x=left, y=panel.y.end, width=right - left, height=height)
        names = (block, block.rpartition(".")[2])
        label = next((name for name in names if len(name) * _CHARACTER < right - left), None)
        if label:
            panel.text(label, (left + right) / 2, panel.y.start + 26, "middle")


def _block(name: str) -> str:
    """Return `encoder.layers.3` for all that is in this layer, else the first part of a name, or two in the encoder."""
    numbered = re.match(r"(.+?\.)?layers\.\d+", name)
    if numbered:
        return numbered[0]
    parts = name.split(" ")[0].split(".")
    return ".".join(parts[:2]) if parts[0] == "encoder" else parts[0]


def _first_mark(items: Sequence[Compared], panel: Panel) -> None:
    """Mark the first mismatch, or the first difference if all are within tolerance."""
    states = [item.state for item in items]
    wanted = next((state for state in ("different", "within") if state in states), None)
    if wanted is None:
        return
    index = states.index(wanted)
    x = panel.x.place(index)
    anchor, shift = ("start", 6) if x < (panel.x.start + panel.x.end) / 2 else ("end", -6)
    name = items[index].name
    label = f"{SYMBOLS[wanted]} {name if len(name) <= 68 else '…' + name[-67:]}"
    panel.draw("path", style=f"first {wanted}", d=f"M{x:.1f} 6V{panel.y.start:g}")
    panel.text(label, x + shift, 16, f"first-label {anchor} {wanted}")
