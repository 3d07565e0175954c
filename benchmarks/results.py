"""The results of a benchmark: one JSON file, rewritten after every run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nest_ssl.errors import NestError


@dataclass(frozen=True)
class Result:
    """The numbers of one side in one round of a measurement, or the error."""

    measurement: str
    side: str
    round: int
    numbers: dict[str, Any]

    @property
    def error(self) -> str | None:
        return self.numbers.get("error")


@dataclass
class Results:
    """All results of a benchmark, with the machine and the options that they depend on."""

    about: dict[str, str] = field(default_factory=dict)
    runs: list[Result] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Results:
        if not path.is_file():
            return cls()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(content["about"], [Result(**run) for run in content["runs"]])
        except (ValueError, KeyError, TypeError) as error:
            raise NestError(f"{path}: not the results of a benchmark ({error}); delete it to start again") from error

    def write(self, path: Path) -> None:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        temporary.replace(path)

    def has(self, measurement: str, side: str, round_number: int) -> bool:
        return any(run.round == round_number for run in self.of(measurement, side))

    def forget(self, measurement: str) -> None:
        self.runs = [run for run in self.runs if run.measurement != measurement]

    def of(self, measurement: str, side: str) -> list[Result]:
        return [run for run in self.runs if (run.measurement, run.side) == (measurement, side)]

    def median(self, measurement: str, side: str, metric: str) -> float | None:
        """Return the median over the rounds; None if no round succeeded."""
        values = [run.numbers[metric] for run in self.of(measurement, side) if run.numbers.get(metric) is not None]
        return statistics.median(values) if values else None

    def ratio(self, measurement: str, side: str, against: str, metric: str) -> float | None:
        """Return the median over rounds of one side's number divided by the other's of the same round."""
        ratios = list(self._ratios(measurement, side, against, metric))
        return statistics.median(ratios) if ratios else None

    def _ratios(self, measurement: str, side: str, against: str, metric: str) -> Iterator[float]:
        others = {run.round: run.numbers.get(metric) for run in self.of(measurement, against)}
        for run in self.of(measurement, side):
            mine, other = run.numbers.get(metric), others.get(run.round)
            if mine is not None and other:
                yield mine / other
