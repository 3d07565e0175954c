"""Pieces of charts: a frame to draw in, round values for its scale, lines and words in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nest_ssl.apps.pages.text import Words


@dataclass(frozen=True)
class Frame:
    """A rectangle to draw in."""

    left: float
    right: float
    top: float
    bottom: float

    def column(self, count: int) -> float:
        return (self.right - self.left) / max(count, 1)

    def x(self, index: int, count: int) -> float:
        return self.left + (index + 0.5) * self.column(count)


def round_values(low: float, high: float, parts: int = 4) -> Iterator[float]:
    """Values of 1, 2 or 5 times a power of ten, which divide the range into about so many parts, or half as many."""
    rough = (high - low) / parts
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough)
    yield from (step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1))


def tick(label: str, y: float, frame: Frame) -> Iterator[str]:
    """A line across the frame, with its value on the left."""
    yield f'<path class="grid" d="M{frame.left:g} {y:.1f}H{frame.right:g}"/>'
    yield f'<text class="end" x="{frame.left - 8:g}" y="{y + 4:.1f}">{label}</text>'


def text(content: Words, x: float, y: float, style: str) -> Iterator[str]:
    """In both languages, of which the page shows one."""
    for language, words in content.languages:
        yield f'<text lang="{language}" class="{style}" x="{x:g}" y="{y:.1f}">{words}</text>'


def svg(width: int, height: int, caption: str, parts: Iterable[str], style: str, attributes: str = "") -> str:
    """`caption` is the id of the text that describes the chart to those who cannot see it."""
    return (
        f'<svg class="{style}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{caption}"{attributes}>'
        f"{''.join(parts)}</svg>"
    )
