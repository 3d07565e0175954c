"""The page's curves, of one run or several: loss and its companions, code books, and throughput over hours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.apps.pages.text import Count, Html, Words, code, escaped
from nest_ssl.apps.report.charts import COLOURS, Chart, Line, can_be_logarithmic, curve_chart, legend, reading_data
from nest_ssl.apps.report.comparable import groups_of_one_task
from nest_ssl.apps.report.curves import curve_of
from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.gathered import RunReport
from nest_ssl.apps.report.levels import levels_of_runs
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.texts import words
from nest_ssl.training.loggers.tags import tag_of


@dataclass(frozen=True)
class ChartPlan:
    """One chart: its title, its tags with their names in the legend, and how it is drawn."""

    title: str
    tags: tuple[tuple[str, str], ...]
    share: bool = False
    hours: bool = False
    of_task: bool = False  # runs with different tasks are not drawn into one frame
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
)
Numbered = Sequence[tuple[int, RunReport]]  # the place of a run on the page gives it its colour
PADDING = ChartPlan("padding_efficiency", (("padding_efficiency", "training"),), share=True)


def curves_section(reports: Sequence[RunReport]) -> str:
    figures, missing = _figures(TRAINING, reports)
    if not figures:
        return f"<section><h2>{words('curves')}</h2><p>{words('nothing_logged')}</p></section>"
    switch = f'<label class="choice"><input type="checkbox" class="logarithmic"> {words("logarithmic")}</label>'
    return (
        f'<section><h2>{words("curves")}</h2>{run_legend(reports)}{switch}<div class="pair">{figures}</div>{missing}'
        f'<p class="muted">{words("mean_hint")} {words("reading_hint")}</p></section>'
    )


def throughput_section(reports: Sequence[RunReport]) -> str:
    """With the padding too if there are several runs; that of a single one stands beside its data."""
    figures, missing = _figures(THROUGHPUT if len(reports) == 1 else (*THROUGHPUT, PADDING), reports)
    hint = f'<p class="muted">{words("hours_hint")}</p>' if figures else ""
    content = f'{run_legend(reports)}<div class="pair">{figures}</div>{missing}{hint}'
    return f"<section><h2>{words('throughput')}</h2>{content}</section>"


def codebook_section(reports: Sequence[RunReport]) -> str:
    """Coverage and perplexity of every book that any of the runs logs."""
    books = max((report.run.books for report in reports), default=1)
    parts = []
    for book in range(books):
        figures, _ = _figures(_codebook_plans(book), reports)
        heading = f"<h3>{words('book', number=book)}</h3>" if books > 1 and figures else ""
        parts.append(f'{heading}<div class="pair">{figures}</div>' if figures else "")
    content = "".join(parts)
    if not content:
        return f"<section><h2>{words('codebooks')}</h2><p>{words('no_codebooks')}</p></section>"
    return f"<section><h2>{words('codebooks')}</h2>{run_legend(reports)}{content}</section>"


def padding_figure(reports: Sequence[RunReport]) -> str:
    return "".join(_figures((PADDING,), reports))


def run_legend(reports: Sequence[RunReport]) -> str:
    """Colours of the runs, where there are several."""
    if len(reports) < 2:
        return ""
    return legend((f"colour-{index % COLOURS}", escaped(report.run.name)) for index, report in enumerate(reports))


def _codebook_plans(book: int) -> tuple[ChartPlan, ...]:
    def tags(*names: str) -> tuple[tuple[str, str], ...]:
        return tuple((f"codebook_{book}/{name}", name) for name in names)

    coverage = tags("target_cumulative_coverage", "target_coverage", "predicted_coverage")
    return (
        ChartPlan("perplexity", tags("target_perplexity", "predicted_perplexity"), of_task=True, book=book),
        ChartPlan("coverage", coverage, share=True, of_task=True, book=book),
    )


def _figures(plans: Sequence[ChartPlan], reports: Sequence[RunReport]) -> tuple[str, str]:
    """The charts that can be drawn, and a line that names the others."""
    figures, missing = [], []
    for plan in plans:
        drawn = [_figure(plan, group, lines, len(reports)) for group, lines in _charts(plan, reports)]
        figures += drawn
        missing += [code(tag_of(tag)) for tag, _ in plan.tags] if not drawn else []
    told = f'<p class="muted">{words("not_logged", names=Html(", ".join(missing)))}</p>' if missing else ""
    return "".join(figures), told


def _charts(plan: ChartPlan, reports: Sequence[RunReport]) -> Iterator[tuple[Numbered, list[tuple[str, Line]]]]:
    """The runs of each frame with their curves: all in one, unless their tasks differ and the chart depends on that."""
    runs = [report.run for report in reports]
    groups = groups_of_one_task(runs) if plan.of_task else [runs]
    for group in groups:
        numbered = [(number, report) for number, report in enumerate(reports) if report.run in group]
        lines = list(_lines(plan, numbered, len(reports)))
        if lines:
            yield numbered, lines


def _lines(plan: ChartPlan, group: Numbered, of: int) -> Iterator[tuple[str, Line]]:
    """Every curve with the key of its legend; colours tell the runs of a page apart, or the curves of a single one."""
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
                label = Words(*(Html(f"{escaped(run.name)} {text}") for _, text in words(name).languages))
                shown = label if len(plan.tags) > 1 else Words(escaped(run.name), escaped(run.name))
                yield name, Line(shown, number % COLOURS, curve, dash=place, breaks=breaks)


def _along(series: Series, run: Run, plan: ChartPlan) -> np.ndarray:
    if not plan.hours:
        return series.steps.astype(np.float64)
    return (series.times - run.history.starts[0].time) / 3600


def _figure(plan: ChartPlan, group: Numbered, named: Sequence[tuple[str, Line]], of: int) -> str:
    lines = [line for _, line in named]
    chart = Chart(
        lines,
        marks=_restarts(group[0][1].run, plan) if of == 1 else (),
        levels=levels_of_runs([(report.run.name, report.signs) for _, report in group], plan.title, plan.book),
        hours=plan.hours,
        share=plan.share,
    )
    part = "" if len(group) == of else f"-{group[0][0]}"  # of those that have no frame in common
    whose = f" ({escaped(', '.join(report.run.name for _, report in group))})" if part else ""
    caption = f"chart-{plan.title}-{plan.tags[0][0].replace('/', '-')}{part}"
    drawn = curve_chart(chart, caption, style="narrow")
    if can_be_logarithmic(chart) and not plan.hours:
        drawn = curve_chart(chart, caption, style="narrow linear")
        drawn += curve_chart(chart, caption, style="narrow log", logarithmic=True)
    return (
        f'<figure data-chart="{escaped(reading_data(chart))}">'
        f'<figcaption id="{caption}"><strong>{words(plan.title)}</strong>{whose}{_notes(lines)}</figcaption>'
        f'{_line_legend(named, of)}{drawn}<output class="reading"></output></figure>'
    )


def _line_legend(named: Sequence[tuple[str, Line]], runs: int) -> str:
    """Which curve is which, where a chart has several kinds."""
    kinds = dict(named)
    if len(kinds) < 2:
        return ""
    if runs == 1:
        return legend((f"colour-{line.colour}", words(name)) for name, line in kinds.items())
    return legend((f"plain dash-{line.dash}", words(name)) for name, line in kinds.items())


def _notes(lines: Sequence[Line]) -> str:
    odd = sum(len(line.curve.not_finite) for line in lines)
    return f' <small class="warning">{words("not_finite_count", count=Count(odd))}</small>' if odd else ""


def _restarts(run: Run, plan: ChartPlan) -> list[float]:
    again = run.history.starts[1:]
    if plan.hours:
        return [(start.time - run.history.starts[0].time) / 3600 for start in again]
    return [float(start.first_step) for start in again if start.first_step is not None]
