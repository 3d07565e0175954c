"""The first thing that the page says of a run: its verdict and why, whether it is going, and its numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from nest_ssl.apps.pages.page import table
from nest_ssl.apps.pages.text import Count, Html, Words, code, escaped
from nest_ssl.apps.report.charts import COLOURS
from nest_ssl.apps.report.comparable import Obstacle, Scope, obstacle
from nest_ssl.apps.report.figures import Figure, best_value
from nest_ssl.apps.report.gathered import RunReport
from nest_ssl.apps.report.health import Finding, Health
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.status import Status
from nest_ssl.apps.report.texts import number, plain_number, share, span, words

SYMBOLS = {"good": "✓", "early": "…", "caution": "!", "bad": "✕", "unknown": "?"}
_SHARES = ("share", "accuracy", "chance")  # values of findings that are read as per cent
_COUNTS = ("codes", "book", "step", "warmup", "perplexity", "predicted", "targets", "best_codes")
SCOPES: tuple[Scope, ...] = ("training", "validation")
_MOST_KEYS = 6  # that a reason names; all of them stand in the table of differences
_TILES = (
    *("train_loss", "val_loss", "train_accuracy", "val_accuracy", "audio_seconds_per_second", "data_wait_share"),
    *("padding_efficiency", "starts", "skipped_audio"),
)


def verdict_panel(report: RunReport) -> str:
    """Verdict, reasons, status, tiles."""
    health = report.health
    symbol = f'<span class="symbol" aria-hidden="true">{SYMBOLS[health.state]}</span>'
    return (
        f'<section class="verdict {health.state}" aria-labelledby="verdict">'
        f'<h1 id="verdict">{symbol} {words(health.word)}</h1>'
        f"{findings_list(health)}{_status_lines(report.status)}{_tiles(report.figures)}</section>"
    )


def findings_list(health: Health) -> str:
    """What was found, with its reason, worst first; the same of several code books once."""
    alike = Counter(finding.key for finding in health.findings)
    first = {finding.key: finding for finding in reversed(health.findings)}
    rows = "".join(
        f'<li class="{finding.state}"><b aria-hidden="true">{SYMBOLS[finding.state]}</b>'
        f'<span class="unseen">{words(f"state_{finding.state}")}: </span>{_sentence(finding)}'
        f"{words('other_books', count=Count(alike[finding.key] - 1)) if alike[finding.key] > 1 else ''}</li>"
        for finding in health.findings
        if finding is first[finding.key]
    )
    return f'<ul class="findings">{rows}</ul>'


def comparison_table(reports: Sequence[RunReport]) -> str:
    """Key figures side by side; the best of a row is strong, or the page says why these runs cannot be compared."""
    columns = [words("figure"), *(_run_name(index, report.run) for index, report in enumerate(reports))]
    verdicts = "".join(f"<td>{_mark(report.health)}</td>" for report in reports)
    states = "".join(f"<td>{words(report.status.state)}</td>" for report in reports)
    rows = [
        f'<tr><th scope="row">{words("verdict")}</th>{verdicts}</tr>',
        f'<tr><th scope="row">{words("status")}</th>{states}</tr>',
    ]
    runs = [report.run for report in reports]
    against = {scope: obstacle(runs, scope) for scope in SCOPES}
    for figures in zip(*(report.figures for report in reports), strict=True):
        scope = figures[0].scope
        best = best_value(figures) if scope is None or against[scope] is None else None
        cells = "".join(f"<td>{_strong(figure_text(of), best is not None and of.value == best)}</td>" for of in figures)
        rows.append(f'<tr><th scope="row">{words(figures[0].name)}</th>{cells}</tr>')
    return table("figures", columns, "".join(rows)) + _not_compared(against) + _troubles(reports)


def _not_compared(against: Mapping[Scope, Obstacle | None]) -> str:
    """Why no loss or accuracy is called the best: of both sets together where the reason is the same."""
    found = {scope: why for scope, why in against.items() if why is not None}
    if len(set(found.values())) == 1 and len(found) == len(SCOPES):
        return _reason("both", next(iter(found.values())))
    return "".join(_reason(scope, why) for scope, why in found.items())


def _reason(scope: str, why: Obstacle) -> str:
    parts = []
    if why.keys:
        shown = [code(key) for key in why.keys[:_MOST_KEYS]]
        more = f" +{len(why.keys) - _MOST_KEYS}" if len(why.keys) > _MOST_KEYS else ""
        parts.append(words("not_compared_keys", what=words(f"losses_{scope}"), keys=Html(", ".join(shown) + more)))
    if why.unknown:
        names = escaped(", ".join(why.unknown))
        parts.append(words("not_compared_unknown", what=words(f"losses_{scope}"), names=names))
    return "".join(f'<p class="not-compared">{part}</p>' for part in parts)


def _troubles(reports: Sequence[RunReport]) -> str:
    """Why a run is not called healthy."""
    return "".join(
        f"<p>{words('run_finding', run=report.run.name, finding=_sentence(finding))}</p>"
        for report in reports
        for finding in report.health.findings
        if finding.state in ("bad", "caution")
    )


def figure_text(figure: Figure) -> Html:
    """As people read it; a dash for what is not there."""
    if figure.value is None:
        return Html("–")
    if not math.isfinite(figure.value):
        return number(figure.value)
    if figure.kind == "count":
        return Html(f"{int(figure.value):,}")
    return share(figure.value) if figure.kind == "share" else number(figure.value)


def _run_name(index: int, run: Run) -> Html:
    return Html(f'<span class="dot colour-{index % COLOURS}" aria-hidden="true"></span>{escaped(run.name)}')


def _mark(health: Health) -> Html:
    return Html(
        f'<span class="state {health.state}"><b aria-hidden="true">{SYMBOLS[health.state]}</b> '
        f"{words(health.word)}</span>"
    )


def _strong(text: Html, is_best: bool) -> Html:
    return Html(f"<strong>{text}</strong>") if is_best else text


def _sentence(finding: Finding) -> Words:
    def shown(name: str, value: float) -> object:
        if name in _SHARES:
            return share(value)
        return Html(plain_number(value)) if name not in _COUNTS else Html(f"{round(value):,}")

    return words(f"why_{finding.key}", **{name: shown(name, value) for name, value in finding.values.items()})


def _status_lines(status: Status) -> str:
    key = "step_only" if status.total is None else "step_of_about" if status.total_is_estimated else "step_of"
    parts: list[Words] = [words(key, step=Count(status.step), total=Count(status.total or 0))]
    if status.seconds_left is not None:
        parts.append(words("time_left", time=span(status.seconds_left)))
    progress = ""
    if status.total:
        progress = f'<progress max="{status.total}" value="{min(status.step, status.total)}"></progress>'
    facts = "".join(f"<span>{part}</span>" for part in (f"<strong>{words(status.state)}</strong>", *parts))
    return f'<p class="status">{facts}</p>{progress}<p class="muted">{_judged(status)}</p>'


def _judged(status: Status) -> Words:
    if status.state == "finished":
        return words("judged_finished")
    if status.age is None:
        return words("judged_empty")
    return words("judged_age", age=span(status.age), patience=span(status.patience))


def _tiles(figures: Sequence[Figure]) -> str:
    shown = [figure for figure in figures if figure.name in _TILES and figure.value is not None]
    tiles = "".join(f"<div><dt>{words(of.name)}</dt><dd>{figure_text(of)}</dd></div>" for of in shown)
    return f'<dl class="tiles">{tiles}</dl>'
