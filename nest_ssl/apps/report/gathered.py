"""Everything that a report says about a run; each part is read or computed once, when it is first needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nest_ssl.apps.report.configuration import adjustments_of
from nest_ssl.apps.report.figures import KeyFigure, key_figures
from nest_ssl.apps.report.health import Health, Signs, health_of, signs_of
from nest_ssl.apps.report.run import Run
from nest_ssl.apps.report.samples import SampleSet, newest_samples
from nest_ssl.apps.report.status import Status, status_of
from nest_ssl.config.machine import Adjustment
from nest_ssl.errors import NestError


@dataclass(frozen=True)
class RunReport:
    """A run with what a report says about it."""

    run: Run
    now: float

    @cached_property
    def status(self) -> Status:
        return status_of(self.run, self.now)

    @cached_property
    def signs(self) -> Signs:
        return signs_of(self.run, self.status.step)

    @cached_property
    def health(self) -> Health:
        return health_of(self.signs)

    @cached_property
    def figures(self) -> list[KeyFigure]:
        return key_figures(self.run, self.status)

    @cached_property
    def samples(self) -> SampleSet | NestError | None:
        """The newest samples, or why they cannot be read."""
        try:
            return newest_samples(self.run.folder)
        except NestError as error:
            return error

    @cached_property
    def adjusted(self) -> dict[str, Adjustment]:
        """What the machine adjusted, by key."""
        return adjustments_of(self.run)

    def as_dict(self) -> dict[str, Any]:
        """Return key figures and verdict for JSON."""
        status, health = self.status, self.health
        return {
            "run": str(self.run.folder),
            "state": status.state,
            "total_steps": status.total,
            "seconds_left": status.seconds_left,
            "seconds_since_newest_number": status.age,
            "health": health.state,
            "verdict": health.word,
            "findings": [{"state": of.state, "finding": of.key, **of.values} for of in health.findings],
            "figures": {figure.name: figure.as_json() for figure in self.figures},
        }


def gather(runs: Sequence[Run]) -> list[RunReport]:
    """Return the reports of these runs, as of now."""
    now = time.time()
    return [RunReport(run, now) for run in runs]
