"""The folder of a run: one run at a time writes there, and it moves or replaces only files that a run wrote.

`exp_manager.explicit_log_dir` may name any folder, even a home folder. A run first records the names of the files that
it will write in its `environment.json`; a file that is not recorded belongs to the user and is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from nest_ssl.atomic import atomic_write
from nest_ssl.config.machine import Adjustment
from nest_ssl.errors import ConfigError, NestError, one_line
from nest_ssl.folder_lock import lock_folder

if TYPE_CHECKING:
    from nest_ssl.training.experiment import Experiment

CONFIG, ENVIRONMENT = "config.yaml", "environment.json"
FILES = "files"  # the field of environment.json
_TENSORBOARD_SETTINGS = "hparams.yaml"
_WRITTEN_BEFORE = (CONFIG, ENVIRONMENT, _TENSORBOARD_SETTINGS)  # by versions that kept no record
_PACKAGES = ("nest_ssl", "torch", "lightning", "hydra-core", "omegaconf", "numpy", "soundfile", "soxr")
_IN_USE = "wait for its end, or give this run a folder of its own (exp_manager.name, exp_dir)"


@contextlib.contextmanager
def hold_run_folders(experiment: Experiment | None) -> Iterator[None]:
    """Lock the run's folder, and that of its checkpoints if it is elsewhere, on rank 0; called with None, do nothing.

    A second run in the same folder would move and remove the checkpoints of the first. If another process holds a
    folder, raise an error that names it.
    """
    if experiment is None or rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        yield
        return
    folders, checkpoints = [experiment.folder], experiment.checkpoints
    if not checkpoints.resolve().is_relative_to(experiment.folder.resolve()):
        folders.append(checkpoints)
    with contextlib.ExitStack() as held:
        for folder in folders:
            with writable(folder):
                held.enter_context(lock_folder(folder, _IN_USE))
        yield


def write_run_files(experiment: Experiment, cfg: DictConfig) -> None:
    """Write configuration, environment and `files_to_copy` into the run's folder; files of an earlier start move."""
    folder = experiment.folder
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        copies = files_to_copy(experiment.settings.files_to_copy, folder)
        files = [CONFIG, ENVIRONMENT, *copies]
        set_earlier_files_aside(folder, files)
        if experiment.settings.create_tensorboard_logger and not (folder / _TENSORBOARD_SETTINGS).exists():
            files.append(_TENSORBOARD_SETTINGS)
        environment = {**_environment(experiment.adjustments), FILES: files}
        _write(folder / ENVIRONMENT, json.dumps(environment, indent=2) + "\n")  # first: it records what is written
        _write(folder / CONFIG, OmegaConf.to_yaml(cfg))
        for path in copies.values():
            shutil.copy(path, folder)


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an error of the file system within the block into one line."""
    try:
        yield
    except OSError as error:
        raise NestError(f"{folder}: the run's folder cannot be written: {one_line(error)}") from error


def _write(path: Path, content: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def files_to_copy(sources: Sequence[str], folder: Path) -> dict[str, Path]:
    """Return the files of `exp_manager.files_to_copy` by the name of the copy, without those already in the folder."""
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
    """Raise an error if the run would replace a file that no run wrote."""
    own = _recorded(folder, names)
    for name in sorted(names):
        if os.path.lexists(folder / name) and name not in own:
            raise ConfigError(
                f"{folder / name}: no run of nest_ssl wrote this file, and this one would replace it; move it, or "
                "choose another folder (exp_manager.explicit_log_dir, exp_dir or name)"
            )


def set_earlier_files_aside(folder: Path, names: Collection[str]) -> None:
    """Move the files of an earlier start of the same run, and no others, to `run_N`, as NeMo does."""
    refuse_foreign_files(folder, names)
    own = [name for name in sorted(_recorded(folder, names)) if (folder / name).is_file()]
    if not own:
        return
    aside = folder / f"run_{next_number(folder, 'run_')}"
    aside.mkdir()
    for name in sorted(own, key=lambda name: name == ENVIRONMENT):  # the record last, in case of a kill
        (folder / name).replace(aside / name)


def shown_path(path: Path | str) -> str:
    """Return the path relative to the working directory if it is below it."""
    path = Path(path)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def next_number(folder: Path, prefix: str) -> int:
    """Return the number after the highest one in use; lower ones may be free because their folders were removed."""
    taken = [path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*")]
    return max((int(number) for number in taken if number.isdecimal()), default=-1) + 1


def _recorded(folder: Path, names: Collection[str]) -> set[str]:
    """Return the names of the files in the folder that a run wrote; none if there is no record of a run."""
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


def _environment(adjustments: Sequence[Adjustment]) -> dict[str, Any]:
    """Return what the run depends on besides its configuration, and which settings were adjusted to the machine."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):  # run from a checkout that is not installed
            versions[package] = metadata.version(package)
    adjusted = [
        {"key": change.key, "asked": _plain(change.old), "used": _plain(change.new), "reason": change.reason}
        for change in adjustments
    ]
    python, system = sys.version.split()[0], platform.platform()
    return {"command": sys.argv, "python": python, "platform": system, **versions, "adjusted": adjusted}


def _plain(value: Any) -> Any:
    """Return a value without OmegaConf's lists, which JSON cannot hold."""
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
