"""The durations of a run's data sets, read from the manifests that its configuration names, and their histogram."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from nest_ssl.apps.pages.charts import BOTTOM, HEIGHT, LEFT, PARTS, RIGHT, TOP, WIDTH, Axis, Panel, svg
from nest_ssl.apps.pages.text import Count, Words
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.texts import words
from nest_ssl.data.manifest_lines import parse_rows
from nest_ssl.data.paths import resolve_path, split_paths
from nest_ssl.data.tarred.shards import expand_paths
from nest_ssl.errors import NestError, one_line

READING_SECONDS = 5.0  # for one set, about a million lines; the page says if more lines are left
_LINES_BETWEEN_LOOKS = 1000  # at the clock
_PARENTS = 4  # folders above exp_dir/name/version that may be the working directory of a relative path
_MOST_BARS = 40


@dataclass(frozen=True)
class DurationsOfSet:
    """The utterances of one set; `problem` says why some or all of them could not be read."""

    name: str  # train, validation
    files: list[str]
    durations: np.ndarray = field(default_factory=lambda: np.empty(0))  # seconds, NaN where the manifest does not say
    shortest: float = 0.0  # the configuration skips utterances that are shorter
    longest: float = math.inf  # or longer than this
    cut_short: bool = False  # reading took too long
    problem: str | None = None

    @property
    def known(self) -> np.ndarray:
        return self.durations[np.isfinite(self.durations)]

    @property
    def used(self) -> np.ndarray:
        """Durations within the configuration's limits."""
        known = self.known
        return known[(known >= self.shortest) & (known <= self.longest)]


def data_sets(run: Run, clock: Callable[[], float] = time.monotonic) -> list[DurationsOfSet]:
    """Read the training set and the validation set, if the configuration names them."""
    nodes = (("train", run.setting("model.train_ds")), ("validation", run.setting("model.validation_ds")))
    return [_read(name, node, run.folder, clock) for name, node in nodes if isinstance(node, Mapping)]


def summary(found: DurationsOfSet) -> Words:
    """Return the caption of a histogram: the name of the set, its size and typical durations."""
    known = found.known
    return words(
        "set_caption",
        name=words(f"set_{found.name}"),
        count=Count(len(found.durations)),
        hours=f"{known.sum() / 3600:,.4g}" if known.sum() < 3.6e6 else f"{known.sum() / 3600:,.0f}",
        median=f"{np.median(known):.3g}",
        longest=f"{known.max():.3g}",
    )


def notes(found: DurationsOfSet) -> Iterator[Words]:
    """Yield what a histogram does not show."""
    outside, unsaid = len(found.known) - len(found.used), len(found.durations) - len(found.known)
    if outside:
        high = "∞" if math.isinf(found.longest) else f"{found.longest:g}"
        yield words("set_outside", count=Count(outside), low=f"{found.shortest:g}", high=high)
    if unsaid:
        yield words("set_unsaid", count=Count(unsaid))
    if found.cut_short:
        yield words("set_cut_short", count=Count(len(found.durations)), seconds=f"{READING_SECONDS:g}")


def histogram(found: DurationsOfSet, caption: str) -> Markup:
    """Draw how many utterances have which duration; those that training skips are pale."""
    known = found.known
    low = 0.0 if known.min() < known.max() / 3 else float(known.min())
    bars = min(_MOST_BARS, max(5, round(math.sqrt(len(known)) * 2)))
    counts, edges = np.histogram(known, bins=bars, range=(low, max(float(known.max()), low + 0.1)))
    seconds = Axis(float(edges[0]), float(edges[-1]), LEFT, RIGHT)
    panel = Panel(seconds, Axis(0, counts.max() * 1.05, BOTTOM, TOP))
    panel.grid([value for value in panel.y.ticks() if value == int(value)], lambda value: f"{int(value):,}")
    panel.labels_below(seconds.ticks(PARTS), lambda value: f"{value:g}")
    places, heights = seconds.places(edges).tolist(), panel.y.places(counts).tolist()
    for left, right, x, next_x, top in zip(edges, edges[1:], places, places[1:], heights, strict=False):
        style = "bar outside" if right <= found.shortest or left >= found.longest else "bar"
        panel.draw("rect", style=style, x=x + 0.5, y=top, width=max(next_x - x - 1, 0.5), height=BOTTOM - top)
    panel.text(words("axis_seconds"), LEFT - 8, BOTTOM + 21, "end")
    ranges = zip(edges, edges[1:], counts.tolist(), strict=False)
    titles = [f"{left:.3g} – {right:.3g} s: {count:,}" for left, right, count in ranges]
    panel.columns(edges.tolist(), titles, TOP, BOTTOM)
    return svg(WIDTH, HEIGHT, caption, panel, style="narrow")


def _read(name: str, node: Mapping[str, Any], folder: Path, clock: Callable[[], float]) -> DurationsOfSet:
    limits = {"shortest": _number(node, "min_duration", 0.0), "longest": _number(node, "max_duration", math.inf)}
    files: list[str] = []
    durations: list[float] = []
    problem, cut_short, until = None, False, clock() + READING_SECONDS
    try:
        files = [_find(path, folder) for path in expand_paths(_paths(node), "manifest_filepath")]
        for file in files:
            for count, (_, row) in enumerate(parse_rows(file, "manifest_filepath")):
                value = row.get("duration") if isinstance(row, dict) else None
                durations.append(float(value) if isinstance(value, int | float) else math.nan)
                if count % _LINES_BETWEEN_LOOKS == 0 and clock() > until:
                    cut_short = True
                    break
            if cut_short:
                break
    except NestError as error:
        problem = one_line(error)
    return DurationsOfSet(name, files, np.array(durations), cut_short=cut_short, problem=problem, **limits)


def _paths(node: Mapping[str, Any]) -> list[str]:
    value = node.get("manifest_filepath")
    other = next((key for key in ("input_cfg", "shar_path", "cuts_path") if node.get(key)), None)
    if value is None and other is not None:
        raise NestError(f"the data are named by {other}; durations are read from JSON-lines manifests only")
    paths = _strings(value)
    if not paths:
        raise NestError("manifest_filepath names no manifest")
    return paths


def _strings(value: Any) -> list[str]:
    """Return the paths in nested lists, without the weights beside them."""
    if isinstance(value, str):
        return split_paths(value)
    return [text for part in value for text in _strings(part)] if isinstance(value, list | tuple) else []


def _find(path: str, folder: Path) -> str:
    """Find a path as the run would, or relative to a folder above the run's, where it may have been started."""
    found = resolve_path(path)
    if Path(found).is_file():
        return found
    beside = (parent / path for parent in folder.resolve().parents[:_PARENTS])
    return next((str(candidate) for candidate in beside if candidate.is_file()), found)


def _number(node: Mapping[str, Any], key: str, default: float) -> float:
    value = node.get(key)
    return float(value) if isinstance(value, int | float) else default
