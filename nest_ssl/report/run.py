"""A run's folder as it is now, also while the run is writing to it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nest_ssl.errors import NestError, one_line
from nest_ssl.report.events import EVENT_FILES, History, read_history
from nest_ssl.training.problem_report import PROBLEM_REPORT, read_report

_SEARCHED = 4  # levels below a folder that is none


@dataclass(frozen=True)
class Run:
    """What a folder says of its run; `name` tells it from the other runs of the same page."""

    folder: Path
    name: str
    config: dict[str, Any]
    earlier_configs: list[dict[str, Any]]  # of the starts before, in their order
    environment: dict[str, Any]
    history: History

    def setting(self, key: str) -> Any:
        """The configuration's value of a dotted key, or None."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def whole_setting(self, key: str) -> int | None:
        """The same, if it is a whole number."""
        value = self.setting(key)
        return value if type(value) is int else None

    @cached_property
    def problems(self) -> list[dict[str, Any]]:
        """Audio that was skipped or suspicious, as the processes of the run listed it."""
        reports = sorted(self.folder.glob(f"{PROBLEM_REPORT}*.jsonl"))
        return [record for report in reports for record in read_report(report)]

    @cached_property
    def nonfinite_batches(self) -> list[str]:
        """Files of batches that were kept because their loss or gradient was not finite."""
        return sorted(path.name for path in (self.folder / "nonfinite_batches").glob("*.pt"))

    @cached_property
    def checkpoint_step(self) -> int:
        """The newest step that the name of a checkpoint tells; 0 without one."""
        names = (path.name for path in (self.folder / "checkpoints").glob("*step=*"))
        return max((int(found[1]) for name in names if (found := re.search(r"step=(\d+)", name))), default=0)


def newest_run(folder: Path) -> Path:
    """The folder itself, or the run below it that was last written to, if it only holds those of others."""
    if not folder.is_dir() or is_run(folder):
        return folder
    below = [path for path in _folders_below(folder) if is_run(path)]
    return max(below, key=_last_written, default=folder)


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of these folders, each under a name of its own."""
    return [_open(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() or any(folder.glob(EVENT_FILES))


def _open(folder: Path, name: str) -> Run:
    if not folder.is_dir():
        raise NestError(f"{folder}: no such folder; expected the folder of a run, exp_dir/name")
    if not is_run(folder):
        raise NestError(
            f"{folder}: not the folder of a run, nor is there one below it: has neither config.yaml nor {EVENT_FILES}; "
            "expected exp_dir/name"
        )
    earlier = sorted(folder.glob("run_*"), key=lambda path: (len(path.name), path.name))  # run_10 after run_9
    return Run(
        folder=folder,
        name=name,
        config=_yaml(folder / "config.yaml"),
        earlier_configs=[_yaml(path / "config.yaml") for path in earlier if (path / "config.yaml").is_file()],
        environment=_json(folder / "environment.json"),
        history=read_history([*earlier, folder]),
    )


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many as tell them apart."""
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
    return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)


def _folders_below(folder: Path, levels: int = _SEARCHED) -> list[Path]:
    """A run's own folders are no runs: what is below one is not looked at."""
    here = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    deeper = [found for path in here if levels > 1 and not is_run(path) for found in _folders_below(path, levels - 1)]
    return here + deeper


def _yaml(path: Path) -> dict[str, Any]:
    """A configuration; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        config = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except Exception as error:  # YAML and OmegaConf have many
        raise NestError(f"{path}: cannot be read as a configuration: {one_line(error)}") from error
    return config if isinstance(config, dict) else {}  # type: ignore[return-value]


def _json(path: Path) -> dict[str, Any]:
    """What a run wrote of its surroundings; empty if it did not, or is writing it now."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
