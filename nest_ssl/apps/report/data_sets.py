"""How long the utterances are that a run learns from, as the manifests of its configuration say.

Only durations are read, for a bounded time: a report should not take longer than a cup of tea.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nest_ssl.apps.report.run import Run
from nest_ssl.data.manifest_lines import parse_rows
from nest_ssl.data.paths import resolve_path, split_paths
from nest_ssl.data.tarred.shards import expand_paths
from nest_ssl.errors import NestError, one_line

READING_SECONDS = 5.0  # for one set, about a million lines; what is left is not read, and the report says so
_LINES_BETWEEN_LOOKS = 1000  # at the clock
_PARENTS = 4  # of the run's folder in which a relative path may be meant: exp_dir/name/version lies in the working one


@dataclass(frozen=True)
class DataSet:
    """The utterances of one set; `problem` says why they, or the rest of them, could not be read."""

    name: str  # train, validation
    files: list[str]
    durations: np.ndarray = field(default_factory=lambda: np.empty(0))  # seconds, NaN where the manifest does not say
    shortest: float = 0.0  # what the configuration leaves out: shorter
    longest: float = math.inf  # and longer than this
    cut_short: bool = False  # reading took too long
    problem: str | None = None

    @property
    def known(self) -> np.ndarray:
        return self.durations[np.isfinite(self.durations)]

    @property
    def used(self) -> np.ndarray:
        """Within the configuration's limits."""
        known = self.known
        return known[(known >= self.shortest) & (known <= self.longest)]


def data_sets(run: Run, clock: Callable[[], float] = time.monotonic) -> list[DataSet]:
    """Of training and validation, those that the configuration has."""
    nodes = (("train", run.setting("model.train_ds")), ("validation", run.setting("model.validation_ds")))
    return [_read(name, node, run.folder, clock) for name, node in nodes if isinstance(node, Mapping)]


def _read(name: str, node: Mapping[str, Any], folder: Path, clock: Callable[[], float]) -> DataSet:
    limits = {"shortest": _number(node, "min_duration", 0.0), "longest": _number(node, "max_duration", math.inf)}
    files: list[str] = []
    durations: list[float] = []
    problem, cut_short, until = None, False, clock() + READING_SECONDS
    try:
        files = [_find(path, folder) for path in expand_paths(_paths(node), "manifest_filepath")]
        for file in files:
            for count, (_, row) in enumerate(parse_rows(file, "manifest_filepath")):
                value = row.get("duration") if isinstance(row, dict) else None
                durations.append(float(value) if isinstance(value, int | float) else math.nan)
                if count % _LINES_BETWEEN_LOOKS == 0 and clock() > until:
                    cut_short = True
                    break
            if cut_short:
                break
    except NestError as error:
        problem = one_line(error)
    return DataSet(name, files, np.array(durations), cut_short=cut_short, problem=problem, **limits)


def _paths(node: Mapping[str, Any]) -> list[str]:
    value = node.get("manifest_filepath")
    other = next((key for key in ("input_cfg", "shar_path", "cuts_path") if node.get(key)), None)
    if value is None and other is not None:
        raise NestError(f"the data are named by {other}; durations are read from JSON-lines manifests only")
    paths = _strings(value)
    if not paths:
        raise NestError("manifest_filepath names no manifest")
    return paths


def _strings(value: Any) -> list[str]:
    """The paths in nested lists, without the weights that may stand beside them."""
    if isinstance(value, str):
        return split_paths(value)
    return [text for part in value for text in _strings(part)] if isinstance(value, list | tuple) else []


def _find(path: str, folder: Path) -> str:
    """As the run would find it, or relative to a folder above the run's, where it may have been started."""
    found = resolve_path(path)
    if Path(found).is_file():
        return found
    beside = (parent / path for parent in folder.resolve().parents[:_PARENTS])
    return next((str(candidate) for candidate in beside if candidate.is_file()), found)


def _number(node: Mapping[str, Any], key: str, default: float) -> float:
    value = node.get(key)
    return float(value) if isinstance(value, int | float) else default
