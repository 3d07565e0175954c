"""Runs as one HTML page: a single one in full, several side by side with the rest of each folded."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from nest_ssl.apps.pages.page import folded, html_page
from nest_ssl.apps.pages.text import escaped
from nest_ssl.apps.report.curve_sections import codebook_section, curves_section, throughput_section
from nest_ssl.apps.report.data_sections import data_section, samples_section
from nest_ssl.apps.report.gathered import RunReport
from nest_ssl.apps.report.overview import comparison_table, findings_list, verdict_panel
from nest_ssl.apps.report.run_sections import (
    configuration_section,
    differences_section,
    environment_section,
    skipped_section,
    starts_section,
)
from nest_ssl.apps.report.texts import moment, words

_SAMPLES_ALONE, _SAMPLES_OF_SEVERAL = 2, 1  # utterances of a run; each is about a megabyte


def render(reports: Sequence[RunReport]) -> str:
    """The whole page."""
    body = _single(reports[0]) if len(reports) == 1 else _several(reports)
    names = ", ".join(report.run.name for report in reports)
    verdict = words(reports[0].health.word)
    title = f"{verdict.english} / {verdict.chinese}: {names}" if len(reports) == 1 else names
    heading = (
        f"{words('title')} <strong>{escaped(names)}</strong>"
        if len(reports) == 1
        else words("title_several", count=len(reports))
    )
    return html_page(
        title=title,
        heading=f"{heading} <small>{words('made_at', time=moment(time.time()))}</small>",
        body=[*body, _again(reports)],
        assets=Path(__file__).parent,
        media=("img", "media"),
    )


def _single(report: RunReport) -> list[str]:
    return [
        verdict_panel(report),
        curves_section([report]),
        codebook_section([report]),
        throughput_section([report]),
        data_section(report, 0, padding=True),
        samples_section(report, 0, _SAMPLES_ALONE),
        skipped_section(report.run),
        starts_section(report.run),
        configuration_section(report),
        environment_section(report.run),
    ]


def _several(reports: Sequence[RunReport]) -> list[str]:
    details = "".join(_folded_run(number, report) for number, report in enumerate(reports))
    return [
        f"<section><h2>{words('figures')}</h2>{comparison_table(reports)}</section>",
        curves_section(reports),
        codebook_section(reports),
        throughput_section(reports),
        differences_section(reports),
        f'<section class="runs"><h2>{words("each_run")}</h2>{details}</section>',
    ]


def _folded_run(number: int, report: RunReport) -> str:
    parts = (
        findings_list(report.health),
        data_section(report, number, padding=False),
        samples_section(report, number, _SAMPLES_OF_SEVERAL),
        skipped_section(report.run),
        starts_section(report.run),
        configuration_section(report),
        environment_section(report.run),
    )
    return folded(escaped(report.run.name), "".join(parts))


def _again(reports: Sequence[RunReport]) -> str:
    command = shlex.join(["nest-ssl", "report", *(str(report.run.folder) for report in reports)])
    return (
        f'<section class="again"><p class="muted">{words("again")}</p>'
        f"<pre><code>{escaped(command)}</code></pre></section>"
    )
