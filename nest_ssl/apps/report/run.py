"""Reading of a run's folder, also while the run is writing to it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nest_ssl.apps.report.events import EVENT_FILES, LARGEST_WHOLE, History, read_history
from nest_ssl.apps.report.foreign import open_inside, read_config, read_json
from nest_ssl.errors import NestError
from nest_ssl.training.callbacks.problems import PROBLEM_REPORT, read_report

_SEARCHED = 4  # levels below a folder that is not a run's
_LARGEST_PROBLEMS = 256 * 2**20  # bytes
_MOST_BOOKS = 256  # NEST has 1


@dataclass(frozen=True)
class Run:
    """A run as its folder describes it; `name` is unique on the page."""

    folder: Path
    name: str
    config: dict[str, Any]
    earlier_configs: list[dict[str, Any]]  # of the earlier starts, in order
    environment: dict[str, Any]
    history: History

    def setting(self, key: str) -> Any:
        """Return the configuration's value of a dotted key, or None."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def whole_setting(self, key: str) -> int | None:
        """Return the value if it is a whole number, else None."""
        value = self.setting(key)
        return value if type(value) is int and abs(value) <= LARGEST_WHOLE else None

    @property
    def books(self) -> int:
        """The number of codebooks, within sensible limits."""
        return min(max(self.whole_setting("model.num_books") or 1, 1), _MOST_BOOKS)

    @cached_property
    def problems(self) -> list[dict[str, Any]]:
        """Skipped or suspicious audio, as all ranks listed it."""
        records: list[dict[str, Any]] = []
        for report in sorted(self.folder.glob(f"{PROBLEM_REPORT}*.jsonl")):
            with open_inside(report, self.folder, _LARGEST_PROBLEMS):  # checks the file
                records += read_report(report)
        return [record for record in records if isinstance(record["kind"], str)]

    @cached_property
    def nonfinite_batches(self) -> list[str]:
        """The files of batches whose loss or gradient was not finite."""
        return sorted(path.name for path in (self.folder / "nonfinite_batches").glob("*.pt"))

    @cached_property
    def checkpoint_step(self) -> int:
        """The newest step in the names of the checkpoints; 0 without one."""
        names = (path.name for path in (self.folder / "checkpoints").glob("*step=*"))
        steps = (int(found[1]) for name in names if (found := re.search(r"step=(\d+)", name)))
        return max((step for step in steps if step <= LARGEST_WHOLE), default=0)


def newest_run(folder: Path) -> Path:
    """Return the folder if it is a run's, else the most recently written run below it."""
    found = []
    for name, below, _ in os.walk(folder):  # does not follow links, which may lead anywhere
        path = Path(name)
        if _is_run(path):
            found.append(path)
            below.clear()
        if len(path.relative_to(folder).parts) == _SEARCHED:
            below.clear()
        below[:] = [name for name in below if not name.startswith(".")]
    return max(found, key=_last_written, default=folder)


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """Open the runs of these folders; each gets a unique name."""
    return [_open(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() or any(folder.glob(EVENT_FILES))


def _open(folder: Path, name: str) -> Run:
    if not folder.is_dir():
        raise NestError(f"{folder}: no such folder; expected the folder of a run, exp_dir/name")
    if not _is_run(folder):
        raise NestError(
            f"{folder}: not the folder of a run, nor is there one below it: has neither config.yaml nor {EVENT_FILES}; "
            "expected exp_dir/name"
        )
    earlier = sorted(folder.glob("run_*"), key=lambda path: (len(path.name), path.name))  # run_10 after run_9
    return Run(
        folder=folder,
        name=name,
        config=read_config(folder / "config.yaml", folder),
        earlier_configs=[
            read_config(path / "config.yaml", folder) for path in earlier if (path / "config.yaml").is_file()
        ],
        environment=read_json(folder / "environment.json", folder),
        history=read_history([*earlier, folder], folder),
    )


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or as many parts as make the names unique."""
    paths = [folder.resolve().parts for folder in folders]
    if len(set(paths)) < len(paths):
        twice = next(folder for index, folder in enumerate(folders) if paths.index(paths[index]) < index)
        raise NestError(f"{twice}: named twice; give every run once")
    deepest = max(map(len, paths))
    for length in range(1, deepest + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    return names


def _last_written(folder: Path) -> float:
    return max((path.lstat().st_mtime for path in folder.iterdir()), default=0.0)
