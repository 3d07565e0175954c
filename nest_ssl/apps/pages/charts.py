"""Charts of pages: axes, panels and what is drawn in them, as inline SVG.

Pages draw SVG with this module, and matplotlib draws all picture files. A chart on a page follows the language and the
colours of the page and tells its values to a pointer or a keyboard, which a figure of matplotlib cannot do; it would
also take 30 to 60 ms and 40 kB for each of about 20 charts, against 1 ms here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import ArrayLike, NDArray

from nest_ssl.apps.pages.text import Words

WIDTH, HEIGHT = 480, 226  # of a small chart: two fit side by side
LEFT, RIGHT, TOP, BOTTOM = 58.0, 468.0, 16.0, 196.0  # of its panel
PARTS = 6  # of its axes, at most


@dataclass(frozen=True)
class Axis:
    """The values along one side of a panel, and the places where the lowest and the highest are drawn."""

    low: float
    high: float
    start: float
    end: float

    def places(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return where values are drawn."""
        numbers = np.asarray(values, dtype=np.float64)
        return self.start + (numbers - self.low) / (self.high - self.low) * (self.end - self.start)

    def place(self, value: float) -> float:
        return float(self.places(value))

    def ticks(self, parts: int = 4) -> list[float]:
        """Return multiples of 1, 2 or 5 times a power of ten that divide the axis into `parts` at most."""
        rough = (self.high - self.low) / parts
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
        return [step * count for count in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def positions(count: int, start: float, end: float) -> Axis:
    """Return the axis on which item 0, 1, ... is in the middle of the first, second, ... of `count` equal columns."""
    return Axis(-0.5, max(count, 1) - 0.5, start, end)


class Panel:
    """A frame between two axes, and the SVG elements in it."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self.x, self.y = x, y
        self.elements: list[Markup] = []

    def draw(self, name: str, content: object = "", **attributes: object) -> None:
        """Add an element; `style` is its class."""
        self.elements.append(_element(name, content, **attributes))

    def text(self, content: Words | str, x: float, y: float, style: str) -> None:
        """Add a text; of `Words` both languages, of which the page shows one."""
        if isinstance(content, str):
            self.draw("text", content, style=style, x=round(x, 1), y=round(y, 1))
            return
        for language, words in content.languages:
            self.draw("text", words, lang=language, style=style, x=round(x, 1), y=round(y, 1))

    def grid(self, values: Iterable[float], label: Callable[[float], str]) -> None:
        """Draw a line across the panel at each value, with its label on the left."""
        for value in values:
            self.across(value, "grid")
            self.text(label(value), self.x.start - 8, self.y.place(value) + 4, "end")

    def labels_below(self, values: Iterable[float], label: Callable[[float], str]) -> None:
        """Write the labels of the x axis."""
        for value in values:
            self.text(label(value), self.x.place(value), self.y.start + 21, "middle")

    def across(self, value: float, style: str) -> None:
        self.draw("path", style=style, d=f"M{self.x.start:g} {self.y.place(value):.1f}H{self.x.end:g}")

    def upright(self, values: Sequence[float], style: str) -> None:
        """Draw a line from top to bottom at each value."""
        if values:
            lines = (f"M{x:.1f} {self.y.end:g}V{self.y.start:g}" for x in self.x.places(values).tolist())
            self.draw("path", style=style, d="".join(lines))

    def line(self, x: ArrayLike, y: ArrayLike, style: str) -> None:
        """Draw a line through the points, interrupted where y is NaN."""
        points = zip(np.round(self.x.places(x), 1).tolist(), np.round(self.y.places(y), 1).tolist(), strict=True)
        parts, pen = [], "M"
        for place, height in points:
            if math.isnan(height):
                pen = "M"
            else:
                parts.append(f"{pen}{place:g} {height:g}")
                pen = "L"
        self.draw("path", style=f"curve {style}", d="".join(parts))

    def dots(self, x: ArrayLike, y: ArrayLike, style: str) -> None:
        places = zip(self.x.places(x).tolist(), self.y.places(y).tolist(), strict=True)
        self.draw("path", style=style, d="".join(f"M{px:.1f} {py:.1f}h0" for px, py in places if not math.isnan(py)))

    def columns(self, edges: Sequence[float], titles: Sequence[str], top: float, bottom: float) -> None:
        """Add an invisible column over each item, whose title the page shows to a pointer."""
        places = self.x.places(edges).tolist()
        columns = [
            _element("rect", _element("title", title), x=left, y=top, width=right - left, height=bottom - top)
            for title, left, right in zip(titles, places[:-1], places[1:], strict=True)
        ]
        self.draw("g", Markup("").join(columns), style="columns")

    def picture(self, address: str, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Add a picture between these places, stretched to fit."""
        size = {"x": x[0], "y": y[0], "width": x[1] - x[0], "height": y[1] - y[0]}
        self.draw("image", style="pixels", href=address, **size, preserveAspectRatio="none")


def svg(width: int, height: int, caption: str, *panels: Panel, style: str, focusable: bool = False) -> Markup:
    """Return the chart; `caption` is the id of the text that describes it to those who cannot see it."""
    return _element(
        "svg",
        Markup("").join(element for panel in panels for element in panel.elements),
        style=style,
        viewBox=f"0 0 {width} {height}",
        role="img",
        **{"aria-labelledby": caption, **({"tabindex": 0} if focusable else {})},
    )


def padded(values: Iterable[float], margin: float, least: float) -> tuple[float, float]:
    """Return the range of the finite values with a margin on both sides: a share of the range, or of a lone value."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    room = (high - low) * margin or abs(high) * least or 1.0
    return low - room, high + room


def _element(name: str, content: object = "", **attributes: object) -> Markup:
    """Return an SVG element; what is not markup already is escaped, and numbers get two digits after the point."""
    said = "".join(f' {"class" if key == "style" else key}="{_value(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{said}>{escape(content)}</{name}>" if content else f"<{name}{said}/>")


def _value(value: object) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float | int) else escape(value)
