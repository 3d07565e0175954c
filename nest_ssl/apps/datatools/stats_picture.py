"""Statistics of manifests as one picture: durations, loudness, silence, rates, formats and speakers."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nest_ssl.apps.datatools.stats import Histogram, Share, Stats, printable
from nest_ssl.atomic import atomic_write
from nest_ssl.errors import NestError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_INK, _FAINT, _BLUE, _ORANGE = "#1f2933", "#616e7c", "#2f6db3", "#c2620e"
CHINESE_FONTS = (
    *("Noto Sans CJK SC", "Source Han Sans SC", "Microsoft YaHei", "PingFang SC"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei"),
)
_MOST_BARS = _MOST_TICKS = 8
_WIDE_HEIGHT, _BAR_HEIGHT = 3.1, 0.27  # inches
_MOST_FIELDS = 2
_STYLE = {
    "font.size": 9.5,
    "text.color": _INK,
    "text.parse_math": False,  # a $ is a $
    "axes.edgecolor": "#cbd2d9",
    "axes.labelcolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlepad": 9,
    "axes.axisbelow": True,
    "grid.color": "#e4e7eb",
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "svg.fonttype": "none",
}


class _Panel(NamedTuple):
    draw: Callable[[Axes], None]
    height: float = 2.6  # inches


def check_picture(path: Path) -> None:
    """Refuse a path that cannot be written, before hours of reading."""
    if path.suffix.lower() not in FORMATS:
        raise NestError(f"--picture: {str(path)!r} has none of the suffixes {', '.join(FORMATS)}")
    if path.is_dir():
        raise NestError(f"--picture: {str(path)!r} is a folder; give the name of a file to write")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise NestError(f"--picture: {str(path)!r} cannot be written: nothing can be made in {str(folder)!r}")


def draw(stats: Stats, path: Path) -> None:
    """Draw the statistics; the suffix of the path is the format."""
    import matplotlib as mpl
    from matplotlib.font_manager import fontManager

    check_picture(path)
    known = set(fontManager.get_font_names())
    fonts = ["DejaVu Sans", *(name for name in CHINESE_FONTS if name in known)]
    style: Any = {**_STYLE, "font.family": fonts}
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # without a font for it, a box is drawn
        figure = _figure(stats)
        try:
            with atomic_write(path) as temporary:
                figure.savefig(temporary, format=path.suffix.lower().removeprefix("."), dpi=160)
        except OSError as error:
            raise NestError(f"{path}: cannot be written: {error.strerror or error}") from None


def _figure(stats: Stats) -> Figure:
    """Return the figure: durations over the whole width, and two panels in every row below."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels = _panels(stats)
    rows = [panels[first : first + 2] for first in range(0, len(panels), 2)]
    heights = [_WIDE_HEIGHT, *(max(panel.height for panel in row) for row in rows)]
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, hspace=0.06, wspace=0.04)
    figure = Figure(figsize=(10, sum(heights) + 0.5), layout=layout)
    names = _short(", ".join(Path(name).name for name in stats.manifests), 48)
    size = f"{stats.lines:,} lines, {stats.files:,} files, {_time(stats.hours)}"
    figure.suptitle(f"{names}: {size}", x=0.012, ha="left", fontsize=14, fontweight="bold")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    _durations(figure.add_subplot(grid[0, :]), stats)
    for number, row in enumerate(rows, start=1):
        for column, panel in enumerate(row):
            panel.draw(figure.add_subplot(grid[number, column] if len(row) == 2 else grid[number, :]))
    return figure


def _panels(stats: Stats) -> list[_Panel]:
    """Return the panels that have data."""
    panels: list[_Panel] = []
    sound = stats.sound
    if sound is not None and sound.rms is not None and sound.rms_histogram is not None:
        panels.append(_Panel(partial(_loudness, histogram=sound.rms_histogram, median=sound.rms.median)))
    if sound is not None:
        panels.append(_Panel(partial(_silence, histogram=sound.silence_histogram, share=sound.silence_of_all)))
    tables = [("Sample rates", stats.sample_rates, " Hz"), ("Formats", stats.formats, "")]
    tables += [(_short(field.name, 30), field.shares, "") for field in stats.fields if field.groups][:_MOST_FIELDS]
    for title, shares, unit in tables:
        if shares:
            height = 0.75 + _BAR_HEIGHT * min(len(shares), _MOST_BARS)
            panels.append(_Panel(partial(_bars, title=title, shares=shares, unit=unit), height))
    return panels


def _durations(axes: Axes, stats: Stats) -> None:
    if stats.duration is None or stats.duration_histogram is None:
        _titles(axes, "Durations", "none is known")
        axes.set_axis_off()
        return
    _histogram(axes, stats.duration_histogram, "seconds", median=stats.duration.median)
    _titles(axes, "Durations", f"median {stats.duration.median:.1f} s (line), 95% up to {stats.duration.p95:.1f} s")
    if stats.advice is None:
        return
    low, high = axes.get_xlim()
    nearly = stats.advice.max_duration.seconds / 0.98
    if high <= nearly <= 1.3 * high:  # make room for a limit beside the bars
        axes.set_xlim(low, high := nearly)
    for limit, name in ((stats.advice.min_duration, "min_duration"), (stats.advice.max_duration, "max_duration")):
        if low < limit.seconds < high:
            right = limit.seconds > (low + high) / 2
            axes.axvline(limit.seconds, color=_ORANGE, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{name}={limit.seconds:g}",
                (limit.seconds, 1),
                xycoords=("data", "axes fraction"),
                xytext=(-4 if right else 4, -2),
                textcoords="offset points",
                ha="right" if right else "left",
                va="top",
                color=_ORANGE,
                fontsize=8.5,
            )


def _loudness(axes: Axes, histogram: Histogram, median: float) -> None:
    _histogram(axes, histogram, "RMS, dBFS", median=median)
    _titles(axes, "Loudness", _minus(f"median {median:.1f} dBFS (line)"))


def _silence(axes: Axes, histogram: Histogram, share: float) -> None:
    _histogram(axes, histogram, "share of a file")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _titles(axes, "Silence", f"{share:.0%} of all audio")


def _titles(axes: Axes, title: str, figure: str) -> None:
    """Write the name on the left and the main figure on the right."""
    axes.set_title(title)
    axes.set_title(figure, loc="right", fontsize=9, fontweight="normal", color=_FAINT)


def _histogram(axes: Axes, histogram: Histogram, label: str, *, median: float | None = None) -> None:
    edges, counts = histogram.edges, histogram.counts
    widths = [high - low for low, high in pairwise(edges)]
    axes.bar(edges[:-1], counts, widths, align="edge", color=_BLUE, edgecolor="white", linewidth=0.8)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, max(counts) * 1.12)  # names of limits are above the bars
    axes.set_xticks(edges[:: math.ceil(len(edges) / _MOST_TICKS)])
    ends = ((histogram.below, f"below {edges[0]:g}"), (histogram.above, f"above {edges[-1]:g}"))
    outside = ", ".join(f"{count:,} {where}" for count, where in ends if count)
    axes.set_xlabel(_minus(f"{label} ({outside})" if outside else label))
    axes.set_ylabel("lines")
    axes.grid(axis="y")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="y", nbins=5, integer=True)
    if median is not None:
        axes.axvline(median, color=_INK, linewidth=1.2)


def _bars(axes: Axes, title: str, shares: Sequence[Share], unit: str = "") -> None:
    """Draw the hours of the values that have most of them."""
    shown = shares[:_MOST_BARS]
    hours, places = [share.hours for share in shown], range(len(shown))
    axes.barh(places, hours, height=0.66, color=_BLUE)
    axes.set_yticks(places, [f"{_short(str(share.value), 24)}{unit}" for share in shown], color=_INK)
    rows = axes.get_window_extent().height / axes.figure.dpi / _BAR_HEIGHT  # equally thick bars in all panels
    axes.set_ylim(max(len(shown), rows) - 0.4, -0.6)
    hidden = sum(share.hours for share in shares[_MOST_BARS:])
    more = f"; the other {len(shares) - len(shown):,} have {_time(hidden)}" if hidden else ""
    _titles(axes, title, f"{len(shares):,} values{more}" if len(shares) > 1 else "")
    most = max(hours) or 1.0
    axes.set_xlim(0, most * 1.18)
    for place, value in enumerate(hours):
        axes.text(value + most * 0.012, place, _time(value), va="center", fontsize=8.5, color=_FAINT)
    axes.set_xticks([])
    axes.spines[["left", "bottom"]].set_visible(False)


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _time(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"


def _short(text: str, most: int) -> str:
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."
