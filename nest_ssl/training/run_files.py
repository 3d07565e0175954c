"""Which files of a run's folder the run wrote itself: only these are moved or replaced.

`exp_manager.explicit_log_dir` may name any folder, a home folder say. A run first of all records the names of what it
writes there in its `environment.json`; whatever is not recorded belongs to somebody else, and stays where it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from nest_ssl.errors import ConfigError

CONFIG, ENVIRONMENT = "config.yaml", "environment.json"
TENSORBOARD_SETTINGS = "hparams.yaml"
FILES = "files"  # the field of environment.json
_WRITTEN_BEFORE = (CONFIG, ENVIRONMENT, TENSORBOARD_SETTINGS)  # by versions that kept no record


def files_to_copy(sources: Sequence[str], folder: Path) -> dict[str, Path]:
    """The files of `exp_manager.files_to_copy` by the name of the copy; one in the folder already needs none."""
    copies: dict[str, Path] = {}
    for source in map(Path, sources):
        if not source.is_file():
            raise ConfigError(f"exp_manager.files_to_copy: {str(source)!r} is not a file")
        if source.resolve().parent == folder.resolve():
            continue
        if source.name in (*_WRITTEN_BEFORE, *copies):
            raise ConfigError(
                f"exp_manager.files_to_copy: {str(source)!r}: the folder gets another file of this name; rename it"
            )
        copies[source.name] = source
    return copies


def refuse_foreign_files(folder: Path, names: Collection[str]) -> None:
    """Raise an error if the run would write over a file that no run wrote."""
    own = _recorded(folder, names)
    for name in sorted(names):
        if os.path.lexists(folder / name) and name not in own:
            raise ConfigError(
                f"{folder / name}: no run of nest_ssl wrote this file, and this one would replace it; move it, or "
                "choose another folder (exp_manager.explicit_log_dir, exp_dir or name)"
            )


def set_earlier_files_aside(folder: Path, names: Collection[str]) -> None:
    """Move what an earlier start of the same run wrote to `run_N`, as NeMo does, and nothing else."""
    refuse_foreign_files(folder, names)
    own = [name for name in sorted(_recorded(folder, names)) if (folder / name).is_file()]
    if not own:
        return
    aside = folder / f"run_{next_number(folder, 'run_')}"
    aside.mkdir()
    for name in sorted(own, key=lambda name: name == ENVIRONMENT):  # the record last: a killed run can go on moving
        (folder / name).replace(aside / name)


def next_number(folder: Path, prefix: str) -> int:
    """After the highest one taken: an earlier one may have been removed."""
    taken = [path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*")]
    return max((int(number) for number in taken if number.isdecimal()), default=-1) + 1


def _recorded(folder: Path, names: Collection[str]) -> set[str]:
    """Names of the files that a run wrote into the folder itself; none where there is no record of a run."""
    try:
        record: Any = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(record, dict) or not record.keys() >= {"command", "python", "platform"}:
        return set()
    recorded = record.get(FILES, [*_WRITTEN_BEFORE, *names])
    if not isinstance(recorded, list):
        return set()
    return {ENVIRONMENT, *(name for name in recorded if isinstance(name, str) and Path(name).name == name)}
