"""The charts of a run or of several: what each of them shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from nest_ssl.apps.pages.charts import legend_sample
from nest_ssl.apps.pages.text import Words
from nest_ssl.apps.report.configuration import groups_of_one_task
from nest_ssl.apps.report.curves import Chart, Curve, curve_chart, curve_of, reading_data
from nest_ssl.apps.report.health import Signs
from nest_ssl.apps.report.summary import RunReport
from nest_ssl.apps.report.texts import number, share, words
from nest_ssl.training.loggers.build import tag_of

COLOURS = 8  # in the style sheet


@dataclass(frozen=True)
class ChartPlan:
    """One chart: its title, its tags with their names in the legend, and how it is drawn."""

    title: str
    tags: tuple[tuple[str, str], ...]
    share: bool = False
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
_CODEBOOK = (
    ChartPlan("perplexity", (("target_perplexity", "targets"), ("predicted_perplexity", "predictions")), of_task=True),
    ChartPlan(
        "coverage",
        (
            ("target_cumulative_coverage", "targets_since_start"),
            ("target_coverage", "targets"),
            ("predicted_coverage", "predictions"),
        ),
        share=True,
        of_task=True,
    ),
)
_THROUGHPUT = (
    ChartPlan("audio_seconds_per_second", (("audio_seconds_per_second", "training"),)),
    ChartPlan("data_wait_share", (("data_wait_share", "training"),), share=True),
    ChartPlan("padding_efficiency", (("padding_efficiency", "training"),), share=True),
)


@dataclass(frozen=True)
class DrawnChart:
    """A chart as the page shows it."""

    caption: str  # id
    title: Words
    runs: str  # names, where a chart shows some of the page's runs
    not_finite: int
    legend: Sequence[tuple[Markup, Words]]
    drawn: Markup
    data: str  # values for the script, JSON


@dataclass(frozen=True)
class ChartSection:
    """The charts below one heading, the tags that no run logged, and the keys of explanations."""

    heading: str
    charts: Sequence[DrawnChart]
    missing: Sequence[str]
    hints: Sequence[str]


def chart_sections(reports: Sequence[RunReport]) -> Iterator[ChartSection]:
    """Draw the charts of all runs."""
    yield _section("curves", _TRAINING, reports, "mean_hint", "reading_hint")
    yield _section("codebooks", _codebook_plans(max(report.run.books for report in reports)), reports)
    yield _section("throughput", _THROUGHPUT, reports, "efficiency_hint")


def run_legend(reports: Sequence[RunReport]) -> list[tuple[Markup, Words]]:
    """Return the colours of the runs, if there are several."""
    several = reports if len(reports) > 1 else ()
    return [
        (legend_sample(f"colour-{place % COLOURS}"), Words.same(report.run.name))
        for place, report in enumerate(several)
    ]


def levels_of(signs: Signs, chart: str) -> dict[str, float | None]:
    """Return the thresholds of the verdict that belong into a chart; None if the run does not say enough."""
    return {
        "losses": {"guessing": signs.guessing, "frequencies": signs.frequencies},
        "accuracies": {"chance": signs.least_accuracy},
        "perplexity": {"targets": signs.least_perplexity},
    }.get(chart, {})


def _codebook_plans(books: int) -> list[ChartPlan]:
    return [
        replace(
            plan,
            tags=tuple((f"codebook_{book}/{tag}", name) for tag, name in plan.tags),
            book=book if books > 1 else None,
        )
        for book in range(books)
        for plan in _CODEBOOK
    ]


def _section(heading: str, plans: Sequence[ChartPlan], reports: Sequence[RunReport], *hints: str) -> ChartSection:
    """Draw each chart; runs share it, unless their tasks differ and the chart depends on the task."""
    everybody = [list(range(len(reports)))]
    of_one_task = groups_of_one_task([report.run for report in reports])
    drawn: list[DrawnChart] = []
    missing: list[str] = []
    for plan in plans:
        groups = of_one_task if plan.of_task else everybody
        found = [chart for group in groups if (chart := _chart(plan, group, reports)) is not None]
        drawn += found
        missing += [] if found else [tag_of(tag) for tag, _ in plan.tags]
    return ChartSection(heading, drawn, missing, hints)


def _chart(plan: ChartPlan, group: Sequence[int], reports: Sequence[RunReport]) -> DrawnChart | None:
    """Draw one chart of these runs; None if they logged none of its tags."""
    alone, part = len(reports) == 1, len(group) < len(reports)
    curves = [curve for place in group for curve in _curves(plan, place, reports)]
    if not curves:
        return None
    starts = reports[0].run.history.starts[1:] if alone else []
    chart = Chart(
        curves,
        restarts=[float(start.first_step) for start in starts if start.first_step is not None],
        levels=_shared_levels(plan, [reports[place].signs for place in group]),
        share=plan.share,
    )
    caption = f"chart-{plan.title}-{plan.tags[0][0].replace('/', '-')}{f'-{group[0]}' if part else ''}"
    title = words(plan.title)
    kinds = sorted({curve.colour if alone else curve.dash for curve in curves})
    legend = [
        (legend_sample(f"colour-{kind}" if alone else f"plain dash-{kind}"), words(plan.tags[kind][1]))
        for kind in kinds
    ]
    return DrawnChart(
        caption=caption,
        title=title if plan.book is None else words("of_book", name=title, number=plan.book),
        runs=", ".join(reports[place].run.name for place in group) if part else "",
        not_finite=sum(len(curve.not_finite) for curve in curves),
        legend=legend if len(legend) > 1 else [],
        drawn=curve_chart(chart, caption),
        data=reading_data(chart),
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
