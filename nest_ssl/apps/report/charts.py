"""The charts of a run or of several: what each of them shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from nest_ssl.apps.pages.charts import legend_sample
from nest_ssl.apps.pages.text import Words
from nest_ssl.apps.report.curves import Chart, Line, can_be_logarithmic, curve_chart, curve_of, reading_data
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.figures import groups_of_one_task
from nest_ssl.apps.report.gathered import RunReport
from nest_ssl.apps.report.health import CODES_EVER, Signs
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.texts import plain_number, words
from nest_ssl.training.loggers.tags import tag_of

COLOURS = 8  # in the style sheet


@dataclass(frozen=True)
class ChartPlan:
    """One chart: its title, its tags with their names in the legend, and how it is drawn."""

    title: str
    tags: tuple[tuple[str, str], ...]
    share: bool = False
    hours: bool = False
    of_task: bool = False  # runs with different tasks get a chart each
    mean: bool = True  # of what varies from step to step
    book: int = 0


TRAINING = (
    ChartPlan("losses", (("train_loss", "training"), ("val_loss", "validation")), of_task=True),
    ChartPlan("accuracies", (("train_accuracy", "training"), ("val_accuracy", "validation")), share=True, of_task=True),
    ChartPlan("learning_rate", (("learning_rate", "training"),), mean=False),
    ChartPlan("gradient_norm", (("gradient_norm", "training"),)),
    ChartPlan("weight_norm", (("weight_norm", "training"),)),
    ChartPlan("masked_share", (("masked_share", "training"), ("val_masked_share", "validation")), share=True),
)
THROUGHPUT = (
    ChartPlan("audio_seconds_per_second", (("audio_seconds_per_second", "training"),), hours=True),
    ChartPlan("data_wait_share", (("data_wait_share", "training"),), share=True, hours=True),
    ChartPlan("padding_efficiency", (("padding_efficiency", "training"),), share=True),
)


@dataclass(frozen=True)
class ChartFigure:
    """A chart as the page shows it."""

    caption: str  # id
    title: Words
    runs: str  # names, where a chart shows some of the page's runs
    not_finite: int
    legend: Sequence[tuple[Markup, Words]]
    drawn: Markup
    data: str  # values for the script, JSON


@dataclass(frozen=True)
class Figures:
    """The charts that can be drawn, and the tags of the others."""

    charts: Sequence[ChartFigure]
    missing: Sequence[str]


def _codebook_plans(book: int) -> tuple[ChartPlan, ...]:
    def tags(*names: str) -> tuple[tuple[str, str], ...]:
        return tuple((f"codebook_{book}/{name}", name) for name in names)

    coverage = tags("target_cumulative_coverage", "target_coverage", "predicted_coverage")
    return (
        ChartPlan("perplexity", tags("target_perplexity", "predicted_perplexity"), of_task=True, book=book),
        ChartPlan("coverage", coverage, share=True, of_task=True, book=book),
    )


def figures_of(plans: Sequence[ChartPlan], reports: Sequence[RunReport]) -> Figures:
    """Draw the charts of all runs; runs share a chart, unless their tasks differ and the chart depends on the task."""
    figures: list[ChartFigure] = []
    missing: list[str] = []
    for plan in plans:
        runs = [report.run for report in reports]
        drawn = []
        for group in groups_of_one_task(runs) if plan.of_task else [runs]:
            numbered = [(number, report) for number, report in enumerate(reports) if report.run in group]
            lines = list(_lines(plan, numbered, len(reports)))
            if lines:
                drawn.append(_figure(plan, numbered, lines, len(reports)))
        figures += drawn
        missing += [tag_of(tag) for tag, _ in plan.tags] if not drawn else []
    return Figures(figures, missing)


def codebooks_of(reports: Sequence[RunReport]) -> list[tuple[int, Figures]]:
    """Draw the charts of every codebook that a run logs."""
    books = range(max((report.run.books for report in reports), default=1))
    drawn = ((book, figures_of(_codebook_plans(book), reports)) for book in books)
    return [(book, figures) for book, figures in drawn if figures.charts]


def run_legend(reports: Sequence[RunReport]) -> list[tuple[Markup, Words]]:
    """Return the colours of the runs, if there are several."""
    several = reports if len(reports) > 1 else ()
    return [
        (legend_sample(f"colour-{number % COLOURS}"), Words.same(report.run.name))
        for number, report in enumerate(several)
    ]


@dataclass(frozen=True)
class Level:
    """A threshold of the verdict in a chart: `name` is the key of its text."""

    name: str
    value: float
    share: bool = False

    @property
    def label(self) -> Words:
        shown = f"{self.value * 100:.3g}%" if self.share else plain_number(self.value)
        return words(f"level_{self.name}", value=shown)


def levels_of(signs: Signs, chart: str, book: int = 0) -> Iterator[Level]:
    """Yield the thresholds that belong into a chart, by the numbers that health.py compares with."""
    books = {of.number: of for of in signs.books}
    if chart == "losses":
        if signs.guessing is not None:
            yield Level("guessing", signs.guessing)
        if signs.frequencies is not None:
            yield Level("frequencies", signs.frequencies)
        if signs.val_rises and signs.highest_val_loss is not None:
            yield Level("val_rises", signs.highest_val_loss)
    elif chart == "accuracies" and signs.least_accuracy is not None:
        yield Level("chance", signs.least_accuracy, share=True)
    elif chart == "perplexity" and book in books:
        if signs.least_perplexity is not None and books[book].target_perplexity is not None:
            yield Level("targets", signs.least_perplexity)
        if books[book].predictions_narrow and (least := books[book].least_predicted_perplexity) is not None:
            yield Level("predictions", least)
    elif chart == "coverage" and book in books and books[book].target_cumulative_coverage is not None:
        yield Level("idle", CODES_EVER, share=True)


def _levels_of_runs(signs: Sequence[tuple[str, Signs]], chart: str, book: int) -> list[tuple[float, Words]]:
    """Return the thresholds of several runs: one that all share is drawn once, others bear the name of their run."""
    found = [(run, level.value, level.label) for run, of in signs for level in levels_of(of, chart, book)]
    drawn: dict[str, tuple[float, Words]] = {}
    for run, value, name in found:
        shared = sum(other == name for _, _, other in found) == len(signs)
        label = name if shared else words("level_of_run", level=name, run=run)
        drawn.setdefault(label.english, (value, label))
    return list(drawn.values())


def _lines(plan: ChartPlan, group: Sequence[tuple[int, RunReport]], of: int) -> Iterator[tuple[str, Line]]:
    """Yield every curve with the key of its legend; colours tell the page's runs apart, or the curves of a lone run."""
    for number, report in group:
        run = report.run
        for place, (tag, name) in enumerate(plan.tags):
            series = run.history.get(tag)
            if series is None or not len(series.finite):
                continue
            curve = curve_of(series, _along(series, run, plan), mean=plan.mean)
            breaks = _restarts(run, plan) if plan.hours else ()
            if of == 1:
                yield name, Line(words(name), place, curve, breaks=breaks)
            else:
                shown = words("of_run", run=run.name, name=words(name)) if len(plan.tags) > 1 else Words.same(run.name)
                yield name, Line(shown, number % COLOURS, curve, dash=place, breaks=breaks)


def _figure(
    plan: ChartPlan, group: Sequence[tuple[int, RunReport]], named: Sequence[tuple[str, Line]], of: int
) -> ChartFigure:
    lines = [line for _, line in named]
    chart = Chart(
        lines,
        marks=_restarts(group[0][1].run, plan) if of == 1 else (),
        levels=_levels_of_runs([(report.run.name, report.signs) for _, report in group], plan.title, plan.book),
        hours=plan.hours,
        share=plan.share,
    )
    alone = len(group) < of
    caption = f"chart-{plan.title}-{plan.tags[0][0].replace('/', '-')}{f'-{group[0][0]}' if alone else ''}"
    drawn = curve_chart(chart, caption)
    if can_be_logarithmic(chart) and not plan.hours:
        drawn = curve_chart(chart, caption, style="narrow linear")
        drawn += curve_chart(chart, caption, style="narrow log", logarithmic=True)
    kinds = dict(named)
    styles = {name: f"colour-{line.colour}" if of == 1 else f"plain dash-{line.dash}" for name, line in kinds.items()}
    return ChartFigure(
        caption=caption,
        title=words(plan.title),
        runs=", ".join(report.run.name for _, report in group) if alone else "",
        not_finite=sum(len(line.curve.not_finite) for line in lines),
        legend=[(legend_sample(style), words(name)) for name, style in styles.items()] if len(kinds) > 1 else [],
        drawn=drawn,
        data=reading_data(chart),
    )


def _along(series: Series, run: Run, plan: ChartPlan) -> np.ndarray:
    if not plan.hours:
        return series.steps.astype(np.float64)
    return (series.times - run.history.starts[0].time) / 3600


def _restarts(run: Run, plan: ChartPlan) -> list[float]:
    again = run.history.starts[1:]
    if plan.hours:
        return [(start.time - run.history.starts[0].time) / 3600 for start in again]
    return [float(start.first_step) for start in again if start.first_step is not None]
