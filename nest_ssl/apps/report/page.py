"""Runs as one HTML page: a single run in full, or several side by side with the details of each folded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from nest_ssl.apps.pages import page
from nest_ssl.apps.report import charts, samples, sections, texts
from nest_ssl.apps.report.configuration import ABSENT
from nest_ssl.apps.report.summary import RunReport
from nest_ssl.errors import NestError

FOLDER = Path(__file__).parent
_SAMPLES_ALONE, _SAMPLES_OF_SEVERAL = 2, 1  # utterances of a run; each takes about a megabyte
page.templates(FOLDER).globals.update(
    words=texts.words,
    texts=texts,
    charts=charts,
    samples=samples,
    sections=sections,
    ABSENT=ABSENT,
    is_error=lambda value: isinstance(value, NestError),
)


def render(reports: Sequence[RunReport]) -> str:
    """Return the whole page."""
    names = ", ".join(report.run.name for report in reports)
    verdict = texts.words(reports[0].health.word)
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
