"""Runs as one HTML page: a single run in full, or several side by side with the details of each folded."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from nest_ssl.apps.pages import page
from nest_ssl.apps.pages.text import Count, Words
from nest_ssl.apps.report import charts, samples, texts
from nest_ssl.apps.report.charts import COLOURS
from nest_ssl.apps.report.configuration import ABSENT, ADJUSTED, Difference, Obstacle, Scope, differences, obstacle
from nest_ssl.apps.report.events import Start
from nest_ssl.apps.report.health import Finding, Health
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.summary import KeyFigure, RunReport, best_value, total_of
from nest_ssl.apps.report.texts import number, share, words
from nest_ssl.errors import NestError
from nest_ssl.training.run_folder import FILES

FOLDER = Path(__file__).parent
_SAMPLES_ALONE, _SAMPLES_OF_SEVERAL = 2, 1  # utterances of a run; each takes about a megabyte
SYMBOLS = {"good": "✓", "early": "…", "caution": "!", "bad": "✕", "unknown": "?"}
_TILES = (
    *("train_loss", "val_loss", "train_accuracy", "val_accuracy", "audio_seconds_per_second", "data_wait_share"),
    *("padding_efficiency", "starts", "skipped_audio"),
)
_SHARES = ("share", "accuracy", "chance")  # values of findings that are shown as per cent
_COUNTS = ("codes", "book", "step", "warmup", "perplexity", "predicted", "targets", "best_codes")
_SCOPES: tuple[Scope, ...] = ("training", "validation")
_ENVIRONMENT_SHOWN_ELSEWHERE = (ADJUSTED, FILES)  # with the configuration; for the run only


def render(reports: Sequence[RunReport]) -> str:
    """Return the whole page."""
    names = ", ".join(report.run.name for report in reports)
    verdict = words(reports[0].health.word)
    alone = len(reports) == 1
    return page.render(
        FOLDER,
        "report.html",
        title=f"{verdict.english} / {verdict.chinese}: {names}" if alone else names,
        media=("img", "media"),
        reports=reports,
        most_samples=_SAMPLES_ALONE if alone else _SAMPLES_OF_SEVERAL,
        now=time.time(),
    )


def figure_text(figure: KeyFigure) -> str:
    """Return a figure for people; a dash if it was not logged."""
    if figure.value is None:
        return "–"
    if figure.kind == "count" and math.isfinite(figure.value):
        return f"{int(figure.value):,}"
    return share(figure.value) if figure.kind == "share" and math.isfinite(figure.value) else number(figure.value)


def tiles(figures: Sequence[KeyFigure]) -> list[tuple[Words, str]]:
    """Return the figures that stand beside the verdict."""
    shown = (figure for figure in figures if figure.name in _TILES and figure.value is not None)
    return [(words(figure.name), figure_text(figure)) for figure in shown]


def run_names(reports: Sequence[RunReport]) -> list[Markup]:
    """Return the names of the runs, each with a dot in the colour of its curves."""
    dot = Markup('<span class="dot colour-{}" aria-hidden="true"></span>{}')
    return [dot.format(place % COLOURS, report.run.name) for place, report in enumerate(reports)]


def findings(health: Health) -> list[tuple[Finding, int]]:
    """Return the first finding of each kind, worst first, and how many other codebooks have the same."""
    alike: dict[str, list[Finding]] = {}
    for finding in health.findings:
        alike.setdefault(finding.key, []).append(finding)
    return [(found[0], len(found) - 1) for found in alike.values()]


def sentence(finding: Finding) -> Words:
    def shown(name: str, value: float) -> str:
        return share(value) if name in _SHARES else f"{round(value):,}" if name in _COUNTS else number(value)

    return words(f"why_{finding.key}", **{name: shown(name, value) for name, value in finding.values.items()})


def comparison(reports: Sequence[RunReport]) -> Iterator[tuple[Words, list[tuple[str, bool]]]]:
    """Yield each figure's name and its values of all runs, with the best one marked if the runs can be compared."""
    obstacles = _obstacles(reports)
    for figures in zip(*(report.figures for report in reports), strict=True):
        best = best_value(figures) if figures[0].scope not in obstacles else None
        yield words(figures[0].name), [(figure_text(of), best is not None and of.value == best) for of in figures]


def not_compared(reports: Sequence[RunReport]) -> dict[str, Obstacle]:
    """Return why no loss or accuracy is called the best: once for both sets if the reason is the same."""
    found = _obstacles(reports)
    if len(found) == len(_SCOPES) and len(set(found.values())) == 1:
        return {"both": found["training"]}
    return {str(scope): why for scope, why in found.items()}


def _obstacles(reports: Sequence[RunReport]) -> dict[Scope | None, Obstacle]:
    found = {scope: obstacle([report.run for report in reports], scope) for scope in _SCOPES}
    return {scope: why for scope, why in found.items() if why is not None}


def skipped(run: Run) -> Words:
    """Return how much training skipped."""
    totals = [total_of(run, name) for name in ("skipped_audio", "batches_without_masks", "nonfinite_steps")]
    if not (any(totals) or run.problems or run.nonfinite_batches):
        return words("skipped_unknown" if None in totals else "nothing_skipped")
    audio, unmasked, nonfinite = (Count(total or 0) for total in totals)
    return words("skipped_sum", audio=audio, unmasked=unmasked, nonfinite=nonfinite)


def problems(run: Run) -> Iterator[tuple[str, int, str]]:
    """Yield each kind of audio problem, the number of its files, and an example."""
    for kind, files in Counter(record["kind"] for record in run.problems).most_common():
        example = next(record for record in run.problems if record["kind"] == kind)
        yield kind, files, example.get("message") or example["file"]


def starts(run: Run) -> list[tuple[Start, list[Difference]]]:
    """Return each start with the changes of its configuration, if every start left one."""
    configs = [*run.earlier_configs, run.config]
    known = len(configs) == len(run.history.starts)
    return [
        (start, differences(configs[number - 1 : number + 1]) if known and number else [])
        for number, start in enumerate(run.history.starts)
    ]


def yaml_text(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)


def environment(run: Run) -> dict[str, Any]:
    """Return what the run recorded of its machine."""
    return {name: value for name, value in run.environment.items() if name not in _ENVIRONMENT_SHOWN_ELSEWHERE}


page.templates(FOLDER).globals.update(
    words=words,
    texts=texts,
    charts=charts,
    samples=samples,
    content=sys.modules[__name__],  # the functions above
    ABSENT=ABSENT,
    differences=differences,
    is_error=lambda value: isinstance(value, NestError),
)
