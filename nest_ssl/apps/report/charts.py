"""The charts of a run or of several: their curves, thinned so that every spike stays, with a running mean."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from nest_ssl.apps.pages.charts import BOTTOM, HEIGHT, LEFT, PARTS, RIGHT, TOP, WIDTH, Axis, Panel, padded, svg
from nest_ssl.apps.pages.text import Words
from nest_ssl.apps.report.configuration import groups_of_one_task
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.health import Signs
from nest_ssl.apps.report.summary import RunReport
from nest_ssl.apps.report.texts import number, share, words
from nest_ssl.training.loggers.build import tag_of

COLOURS = 8  # in the style sheet
BUCKETS = 300  # of a curve; each keeps its smallest and its largest value, and a chart is about 400 points wide
MEAN_FROM = 30  # values; a shorter series needs no running mean
MEAN_SHARE = 50  # the running mean averages one value in so many
_LINE = 13  # height of a line of text
_DOTS_UP_TO = 40  # points; longer curves are drawn without dots


@dataclass(frozen=True)
class ChartPlan:
    """The content of a chart: its title, and its tags with their names in the legend."""

    title: str
    tags: tuple[tuple[str, str], ...]
    share: bool = False  # values from 0 to 1, shown as per cent
    of_task: bool = False  # runs with different tasks get a chart each
    mean: bool = True  # of what varies from step to step
    book: int | None = None  # if the run has several codebooks


_TRAINING = (
    ChartPlan("losses", (("train_loss", "training"), ("val_loss", "validation")), of_task=True),
    ChartPlan("accuracies", (("train_accuracy", "training"), ("val_accuracy", "validation")), share=True, of_task=True),
    ChartPlan("learning_rate", (("learning_rate", "training"),), mean=False),
    ChartPlan("gradient_norm", (("gradient_norm", "training"),)),
    ChartPlan("weight_norm", (("weight_norm", "training"),)),
    ChartPlan("masked_share", (("masked_share", "training"), ("val_masked_share", "validation")), share=True),
)
_PERPLEXITIES = (("target_perplexity", "targets"), ("predicted_perplexity", "predictions"))
_COVERAGES = (
    ("target_cumulative_coverage", "targets_since_start"),
    ("target_coverage", "targets"),
    ("predicted_coverage", "predictions"),
)
_THROUGHPUT = (
    ChartPlan("audio_seconds_per_second", (("audio_seconds_per_second", "training"),)),
    ChartPlan("data_wait_share", (("data_wait_share", "training"),), share=True),
    ChartPlan("padding_efficiency", (("padding_efficiency", "training"),), share=True),
)


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

    caption: str  # id
    title: Words
    curves: Sequence[Curve]
    legend: Sequence[tuple[str, Words]] = ()  # style of a line, and its meaning
    restarts: Sequence[float] = ()
    levels: Sequence[tuple[float, Words]] = ()
    share: bool = False  # as in the plan
    runs: str = ""  # names, where a chart shows some of the page's runs

    @property
    def not_finite(self) -> int:
        return sum(len(curve.not_finite) for curve in self.curves)


@dataclass(frozen=True)
class ChartSection:
    """The charts below one heading, the tags that no run logged, and the keys of explanations."""

    heading: str
    charts: Sequence[Chart]
    missing: Sequence[str]
    hints: Sequence[str]


def chart_sections(reports: Sequence[RunReport]) -> Iterator[ChartSection]:
    """Yield the charts of all runs."""
    yield _section("curves", _TRAINING, reports, "mean_hint", "reading_hint")
    yield _section("codebooks", _codebook_plans(max(report.run.books for report in reports)), reports)
    yield _section("throughput", _THROUGHPUT, reports, "efficiency_hint")


def run_legend(reports: Sequence[RunReport]) -> list[tuple[str, Words]]:
    """Return the colours of the runs, if there are several."""
    legend = [(f"colour-{place % COLOURS}", Words.same(report.run.name)) for place, report in enumerate(reports)]
    return legend if len(reports) > 1 else []


def levels_of(signs: Signs, chart: str) -> dict[str, float | None]:
    """Return the thresholds of the verdict that belong into a chart; None if the run does not say enough."""
    return {
        "losses": {"guessing": signs.guessing, "frequencies": signs.frequencies},
        "accuracies": {"chance": signs.least_accuracy},
        "perplexity": {"targets": signs.least_perplexity},
    }.get(chart, {})


def _codebook_plans(books: int) -> Iterator[ChartPlan]:
    for book in range(books):
        perplexities, coverages = (
            tuple((f"codebook_{book}/{tag}", name) for tag, name in tags) for tags in (_PERPLEXITIES, _COVERAGES)
        )
        shown = book if books > 1 else None
        yield ChartPlan("perplexity", perplexities, of_task=True, book=shown)
        yield ChartPlan("coverage", coverages, share=True, of_task=True, book=shown)


def _section(heading: str, plans: Iterable[ChartPlan], reports: Sequence[RunReport], *hints: str) -> ChartSection:
    """Plan each chart; runs share it, unless their tasks differ and the chart depends on the task."""
    everybody = [list(range(len(reports)))]
    of_one_task = groups_of_one_task([report.run for report in reports])
    charts: list[Chart] = []
    missing: list[str] = []
    for plan in plans:
        groups = of_one_task if plan.of_task else everybody
        found = [chart for group in groups if (chart := _chart(plan, group, reports)) is not None]
        charts += found
        missing += [] if found else [tag_of(tag) for tag, _ in plan.tags]
    return ChartSection(heading, charts, missing, hints)


def _chart(plan: ChartPlan, group: Sequence[int], reports: Sequence[RunReport]) -> Chart | None:
    """Return one chart of the runs at these places; None if they logged none of its tags."""
    alone, part = len(reports) == 1, len(group) < len(reports)
    curves = [curve for place in group for curve in _curves(plan, place, reports)]
    if not curves:
        return None
    title = words(plan.title)
    kinds = sorted({curve.colour if alone else curve.dash for curve in curves})
    style = "colour" if alone else "plain dash"
    legend = [(f"{style}-{kind}", words(plan.tags[kind][1])) for kind in kinds]
    starts = reports[0].run.history.starts[1:] if alone else []
    return Chart(
        caption=f"chart-{plan.title}-{plan.tags[0][0].replace('/', '-')}{f'-{group[0]}' if part else ''}",
        title=title if plan.book is None else words("of_book", name=title, number=plan.book),
        curves=curves,
        legend=legend if len(legend) > 1 else (),
        restarts=[float(start.first_step) for start in starts if start.first_step is not None],
        levels=_shared_levels(plan, [reports[place].signs for place in group]),
        share=plan.share,
        runs=", ".join(reports[place].run.name for place in group) if part else "",
    )


def _curves(plan: ChartPlan, place: int, reports: Sequence[RunReport]) -> Iterator[Curve]:
    """Yield the curves of a run; colours tell the page's runs apart, or the curves of a lone run."""
    run = reports[place].run
    for index, (tag, key) in enumerate(plan.tags):
        series = run.history.get(tag)
        if not len(series.finite):
            continue
        if len(reports) == 1:
            yield curve_of(series, words(key), mean=plan.mean, colour=index)
        else:
            name = words("of_run", run=run.name, name=words(key)) if len(plan.tags) > 1 else Words.same(run.name)
            yield curve_of(series, name, mean=plan.mean, colour=place % COLOURS, dash=index)


def _shared_levels(plan: ChartPlan, signs: Sequence[Signs]) -> list[tuple[float, Words]]:
    """Return the thresholds that are the same for all of these runs, with their names."""
    first, *others = [levels_of(of, plan.title).items() for of in signs]
    shared = [(name, value) for name, value in first if all((name, value) in other for other in others)]
    shown = share if plan.share else number
    return [(value, words(f"level_{name}", value=shown(value))) for name, value in shared if value is not None]


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
    parts = zip(edges[:-1], np.split(values, edges[1:-1]), strict=True)
    found = [start + place for start, part in parts for place in (np.argmin(part), np.argmax(part))]
    return np.unique([0, *found, len(values) - 1])


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Return the mean of `width` values around each value; of fewer at the ends."""
    window = np.ones(width)  # not by a running sum, which never recovers from one huge value
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def drawn(chart: Chart) -> Markup:
    """Draw curves, thresholds and restarts in one panel."""
    panel = _panel(chart)
    panel.grid(panel.y.ticks(PARTS), lambda value: f"{value * 100:.4g}%" if chart.share else f"{value:.6g}")
    panel.labels_below([value for value in panel.x.ticks(PARTS) if value == int(value)], lambda step: f"{step:,.6g}")
    panel.text(words("axis_steps"), LEFT - 8, BOTTOM + 21, "end")
    panel.upright([step for step in chart.restarts if panel.x.low < step < panel.x.high], "restart")
    for curve in chart.curves:
        _draw_curve(curve, panel)
    _draw_levels(chart, panel)  # last: their names must be legible where curves cross them
    panel.draw("path", style="guide", d="")
    return svg(WIDTH, HEIGHT, chart.caption, panel, style="chart narrow", focusable=True)


def _panel(chart: Chart) -> Panel:
    steps = np.concatenate([curve.x for curve in chart.curves])
    values = [*np.concatenate([curve.y for curve in chart.curves]).tolist(), *(value for value, _ in chart.levels)]
    bottom, top = padded(values, 0.06, 0.05)
    if bottom < 0 <= min(values):
        bottom = 0.0  # no room below 0 for what is never negative
    first, last = float(steps.min()), float(steps.max())
    ends = (first, last) if last > first else (first - 0.5, last + 0.5)
    return Panel(Axis(*ends, LEFT, RIGHT), Axis(bottom, top, BOTTOM, TOP))


def _draw_curve(curve: Curve, panel: Panel) -> None:
    style = f"colour-{curve.colour} dash-{curve.dash}"
    if curve.mean is not None:
        panel.line(curve.x, curve.y, f"raw {style}")
    panel.line(curve.x, curve.y if curve.mean is None else curve.mean, f"mean {style}")
    if curve.mean is None and len(curve.x) <= _DOTS_UP_TO:
        panel.dots(curve.x, curve.y, f"dots {style}")
    if len(curve.not_finite):
        places = panel.x.places(curve.not_finite) - 3
        panel.draw("path", style="not-finite", d="".join(f"M{x:.1f} {TOP - 6:g}l6 6m0-6l-6 6" for x in places))


def _draw_levels(chart: Chart, panel: Panel) -> None:
    """Draw a line for each threshold, with its name below it, or below the name before if that is close."""
    for value, _ in chart.levels:
        panel.across(value, "level")
    base = -math.inf  # of the name before
    for value, name in sorted(chart.levels, key=lambda level: -level[0]):
        y = panel.y.place(value)
        base = max(y + _LINE if y + _LINE <= BOTTOM else y - 4, base + _LINE)
        panel.text(name, RIGHT - 4, base, "end level-name")


def reading_data(chart: Chart) -> str:
    """Return what the script needs to read a chart by pointer or keyboard, as JSON, rounded to what one can see."""
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
