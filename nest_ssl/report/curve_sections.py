"""The page's curves, of one run or several: loss and its companions, code books, and throughput over hours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.pages.text import Count, Html, Words, code, escaped
from nest_ssl.report.charts import COLOURS, Chart, Line, can_be_logarithmic, curve_chart, legend, reading_data
from nest_ssl.report.curves import curve_of
from nest_ssl.report.events import Series
from nest_ssl.report.run import Run
from nest_ssl.report.texts import words


@dataclass(frozen=True)
class Plan:
    """One chart: its title, its tags with their names in the legend, and how it is drawn."""

    title: str
    tags: tuple[tuple[str, str], ...]
    share: bool = False
    hours: bool = False
    guessing: bool = False  # shows the loss of guessing
    mean: bool = True  # of what varies from step to step


TRAINING = (
    Plan("losses", (("train_loss", "training"), ("val_loss", "validation")), guessing=True),
    Plan("accuracies", (("train_accuracy", "training"), ("val_accuracy", "validation")), share=True),
    Plan("learning_rate", (("learning_rate", "training"),), mean=False),
    Plan("gradient_norm", (("gradient_norm", "training"),)),
    Plan("weight_norm", (("weight_norm", "training"),)),
    Plan("masked_share", (("masked_share", "training"), ("val_masked_share", "validation")), share=True),
)
THROUGHPUT = (
    Plan("audio_seconds_per_second", (("audio_seconds_per_second", "training"),), hours=True),
    Plan("data_wait_share", (("data_wait_share", "training"),), share=True, hours=True),
)
PADDING = Plan("padding_efficiency", (("padding_efficiency", "training"),), share=True)


def curves_section(runs: Sequence[Run]) -> str:
    figures, missing = _figures(TRAINING, runs)
    if not figures:
        return f"<section><h2>{words('curves')}</h2><p>{words('nothing_logged')}</p></section>"
    switch = f'<label class="choice"><input type="checkbox" class="logarithmic"> {words("logarithmic")}</label>'
    return (
        f'<section><h2>{words("curves")}</h2>{run_legend(runs)}{switch}<div class="pair">{figures}</div>{missing}'
        f'<p class="muted">{words("mean_hint")} {words("reading_hint")}</p></section>'
    )


def throughput_section(runs: Sequence[Run]) -> str:
    """With the padding too if there are several runs; that of a single one stands beside its data."""
    figures, missing = _figures(THROUGHPUT if len(runs) == 1 else (*THROUGHPUT, PADDING), runs)
    hint = f'<p class="muted">{words("hours_hint")}</p>' if figures else ""
    content = f'{run_legend(runs)}<div class="pair">{figures}</div>{missing}{hint}'
    return f"<section><h2>{words('throughput')}</h2>{content}</section>"


def codebook_section(runs: Sequence[Run]) -> str:
    """Coverage and perplexity of every book that any of the runs logs."""
    books = max((run.whole_setting("model.num_books") or 1 for run in runs), default=1)
    parts = []
    for book in range(books):
        figures, _ = _figures(_codebook_plans(book), runs)
        heading = f"<h3>{words('book', number=book)}</h3>" if books > 1 and figures else ""
        parts.append(f'{heading}<div class="pair">{figures}</div>' if figures else "")
    content = "".join(parts)
    if not content:
        return f"<section><h2>{words('codebooks')}</h2><p>{words('no_codebooks')}</p></section>"
    return f"<section><h2>{words('codebooks')}</h2>{run_legend(runs)}{content}</section>"


def padding_figure(runs: Sequence[Run]) -> str:
    return "".join(_figures((PADDING,), runs))


def run_legend(runs: Sequence[Run]) -> str:
    """Colours of the runs, where there are several."""
    if len(runs) < 2:
        return ""
    return legend((f"colour-{index % COLOURS}", escaped(run.name)) for index, run in enumerate(runs))


def _codebook_plans(book: int) -> tuple[Plan, ...]:
    coverage = ("target_cumulative_coverage", "target_coverage", "predicted_coverage")
    perplexity = ("target_perplexity", "predicted_perplexity")
    return (
        Plan("perplexity", tuple((f"codebook_{book}/{name}", name) for name in perplexity)),
        Plan("coverage", tuple((f"codebook_{book}/{name}", name) for name in coverage), share=True),
    )


def _figures(plans: Sequence[Plan], runs: Sequence[Run]) -> tuple[str, str]:
    """The charts that can be drawn, and a line that names the others."""
    figures, missing = [], []
    for plan in plans:
        lines = list(_lines(plan, runs))
        if lines:
            figures.append(_figure(plan, runs, lines))
        else:
            missing += [code(tag) for tag, _ in plan.tags]
    told = f'<p class="muted">{words("not_logged", names=Html(", ".join(missing)))}</p>' if missing else ""
    return "".join(figures), told


def _lines(plan: Plan, runs: Sequence[Run]) -> Iterator[tuple[str, Line]]:
    """Every curve with the key of its legend; colours tell runs apart, or the curves of a single one."""
    for number, run in enumerate(runs):
        for place, (tag, name) in enumerate(plan.tags):
            series = run.history.get(tag)
            if series is None or not len(series.finite):
                continue
            curve = curve_of(series, _along(series, run, plan), mean=plan.mean)
            breaks = _restarts(run, plan) if plan.hours else ()
            if len(runs) == 1:
                yield name, Line(words(name), place, curve, breaks=breaks)
            else:
                label = Words(*(Html(f"{escaped(run.name)} {text}") for _, text in words(name).languages))
                shown = label if len(plan.tags) > 1 else Words(escaped(run.name), escaped(run.name))
                yield name, Line(shown, number % COLOURS, curve, dash=place, breaks=breaks)


def _along(series: Series, run: Run, plan: Plan) -> np.ndarray:
    if not plan.hours:
        return series.steps.astype(np.float64)
    return (series.times - run.history.starts[0].time) / 3600


def _figure(plan: Plan, runs: Sequence[Run], named: Sequence[tuple[str, Line]]) -> str:
    lines = [line for _, line in named]
    chart = Chart(
        lines,
        marks=_restarts(runs[0], plan) if len(runs) == 1 else (),
        levels=list(_levels(plan, runs)),
        hours=plan.hours,
        share=plan.share,
    )
    caption = f"chart-{plan.title}-{plan.tags[0][0].replace('/', '-')}"
    drawn = curve_chart(chart, caption, style="narrow")
    if can_be_logarithmic(chart) and not plan.hours:
        drawn = curve_chart(chart, caption, style="narrow linear")
        drawn += curve_chart(chart, caption, style="narrow log", logarithmic=True)
    return (
        f'<figure data-chart="{escaped(reading_data(chart))}">'
        f'<figcaption id="{caption}"><strong>{words(plan.title)}</strong>{_notes(lines)}</figcaption>'
        f'{_line_legend(named, len(runs))}{drawn}<output class="reading"></output></figure>'
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


def _levels(plan: Plan, runs: Sequence[Run]) -> Iterator[tuple[float, Words]]:
    """What guessing costs, where all runs have the same code book."""
    codes = {run.whole_setting("model.num_classes") for run in runs}
    size = codes.pop() if len(codes) == 1 else None
    if plan.guessing and size is not None and size > 1:
        yield math.log(size), words("guessing_level")


def _restarts(run: Run, plan: Plan) -> list[float]:
    again = run.history.starts[1:]
    if plan.hours:
        return [(start.time - run.history.starts[0].time) / 3600 for start in again]
    return [float(start.first_step) for start in again if start.first_step is not None]
