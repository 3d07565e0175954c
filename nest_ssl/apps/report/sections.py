"""What the templates show of runs beside charts: figures, findings, starts and configurations, row by row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from markupsafe import Markup

from nest_ssl.apps.pages.text import Count, Words
from nest_ssl.apps.report.charts import COLOURS
from nest_ssl.apps.report.configuration import ABSENT, Change, changes
from nest_ssl.apps.report.events import Start
from nest_ssl.apps.report.figures import KeyFigure, Obstacle, Scope, best_value, obstacle, total_of
from nest_ssl.apps.report.gathered import RunReport
from nest_ssl.apps.report.health import Finding, Health
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.status import Status
from nest_ssl.apps.report.texts import number, plain_number, share, span, words

SYMBOLS = {"good": "✓", "early": "…", "caution": "!", "bad": "✕", "unknown": "?"}
_TILES = (
    *("train_loss", "val_loss", "train_accuracy", "val_accuracy", "audio_seconds_per_second", "data_wait_share"),
    *("padding_efficiency", "starts", "skipped_audio"),
)
_SHARES = ("share", "accuracy", "chance")  # values of findings that are shown as per cent
_COUNTS = ("codes", "book", "step", "warmup", "perplexity", "predicted", "targets", "best_codes")
_SCOPES: tuple[Scope, ...] = ("training", "validation")


def figure_text(figure: KeyFigure) -> Markup:
    """Return a figure for people; a dash if it was not logged."""
    if figure.value is None:
        return Markup("–")
    if not math.isfinite(figure.value):
        return number(figure.value)
    if figure.kind == "count":
        return Markup(f"{int(figure.value):,}")
    return share(figure.value) if figure.kind == "share" else number(figure.value)


def tiles(figures: Sequence[KeyFigure]) -> list[tuple[Words, Markup]]:
    """Return the figures that stand beside the verdict."""
    shown = (figure for figure in figures if figure.name in _TILES and figure.value is not None)
    return [(words(figure.name), figure_text(figure)) for figure in shown]


def run_names(reports: Sequence[RunReport]) -> list[Markup]:
    """Return the names of the runs, each with a dot in the colour of its curves."""
    dot = Markup('<span class="dot colour-{}" aria-hidden="true"></span>{}')
    return [dot.format(number % COLOURS, report.run.name) for number, report in enumerate(reports)]


def findings(health: Health) -> Iterator[tuple[Finding, int]]:
    """Yield the first finding of each kind, worst first, and how many other codebooks have the same."""
    alike = Counter(finding.key for finding in health.findings)
    first: dict[str, Finding] = {}
    for finding in health.findings:
        first.setdefault(finding.key, finding)
    yield from ((finding, alike[key] - 1) for key, finding in first.items())


def sentence(finding: Finding) -> Words:
    def shown(name: str, value: float) -> object:
        if name in _SHARES:
            return share(value)
        return f"{round(value):,}" if name in _COUNTS else plain_number(value)

    return words(f"why_{finding.key}", **{name: shown(name, value) for name, value in finding.values.items()})


def progress(status: Status) -> list[Words]:
    """Return how far a run is, and how long it still needs."""
    key = "step_only" if status.total is None else "step_of_about" if status.total_is_estimated else "step_of"
    said = [words(key, step=Count(status.step), total=Count(status.total or 0))]
    return said if status.seconds_left is None else [*said, words("time_left", time=span(status.seconds_left))]


def basis(status: Status) -> Words:
    """Return how the page knows whether the run is active."""
    if status.state == "finished":
        return words("judged_finished")
    if status.age is None:
        return words("judged_empty")
    return words("judged_age", age=span(status.age), patience=span(status.patience))


def comparison(reports: Sequence[RunReport]) -> Iterator[tuple[Words, list[tuple[Markup, bool]]]]:
    """Yield each figure's name and its values of all runs, with the best one marked if the runs can be compared."""
    obstacles = _obstacles(reports)
    for figures in zip(*(report.figures for report in reports), strict=True):
        best = best_value(figures) if obstacles.get(figures[0].scope) is None else None
        yield words(figures[0].name), [(figure_text(of), best is not None and of.value == best) for of in figures]


def not_compared(reports: Sequence[RunReport]) -> Iterator[tuple[str, Obstacle]]:
    """Yield why no loss or accuracy is called the best: once for both sets if the reason is the same."""
    found = {str(scope): why for scope, why in _obstacles(reports).items() if why is not None}
    if len(set(found.values())) == 1 and len(found) == len(_SCOPES):
        yield "both", next(iter(found.values()))
    else:
        yield from found.items()


def _obstacles(reports: Sequence[RunReport]) -> dict[Scope | None, Obstacle | None]:
    return {scope: obstacle([report.run for report in reports], scope) for scope in _SCOPES}


@dataclass(frozen=True)
class Skipped:
    """How much training skipped."""

    audio: int
    unmasked: int
    nonfinite: int
    known: bool  # the run logs these counters


def skipped(run: Run) -> Skipped:
    totals = [total_of(run, name) for name in ("skipped_audio", "batches_without_masks", "nonfinite_steps")]
    audio, unmasked, nonfinite = (int(total or 0) for total in totals)
    return Skipped(audio, unmasked, nonfinite, known=None not in totals)


def problems(run: Run) -> Iterator[tuple[str, int, int, str]]:
    """Yield each kind of audio problem with its files, how often they were read, and an example."""
    for kind, files in Counter(str(record["kind"]) for record in run.problems).most_common():
        of_kind = [record for record in run.problems if record["kind"] == kind]
        yield kind, files, sum(record["count"] for record in of_kind), of_kind[0].get("message") or of_kind[0]["file"]


@dataclass(frozen=True)
class StartRow:
    """One start of a run: how many steps it repeated, how long the run had paused, and what changed in its keys."""

    start: Start
    repeated: int
    pause: Words | str
    changed: Sequence[Change]


def starts(run: Run) -> Iterator[StartRow]:
    """Yield the starts; changes are known if every start but the last left its configuration."""
    configs = [*run.earlier_configs, run.config]
    known = len(configs) == len(run.history.starts)
    ended: float | None = None
    reached = -1
    for index, start in enumerate(run.history.starts):
        repeated = 0 if start.first_step is None else max(0, reached - start.first_step + 1)
        pause = "" if ended is None else span(max(start.time - ended, 0.0))
        yield StartRow(start, repeated, pause, changes(*configs[index - 1 : index + 1]) if known and index else ())
        reached = max(reached, -1 if start.last_step is None else start.last_step)
        ended = start.ended


def differences(reports: Sequence[RunReport]) -> list[tuple[str, list[Any]]]:
    """Return the keys in which the configurations differ, with the value of each run."""
    runs = [report.run for report in reports]
    found = {change.key for run in runs[1:] for change in changes(runs[0].config, run.config)}
    leaves = [{change.key: change.after for change in changes({}, run.config)} for run in runs]
    keys = dict.fromkeys(key for of in leaves for key in of if key in found)
    return [(key, [of.get(key, ABSENT) for of in leaves]) for key in keys]


def yaml_text(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
