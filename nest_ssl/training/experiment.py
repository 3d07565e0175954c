"""Experiment folders: where a run writes, what it continues, what is written there besides checkpoints."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger
from omegaconf import DictConfig, OmegaConf

from nest_ssl.atomic import atomic_write
from nest_ssl.config.machine import Adjustment
from nest_ssl.config.settings import ExperimentSettings, read_settings
from nest_ssl.config.targets import check_arguments
from nest_ssl.errors import ConfigError, NestError, one_line
from nest_ssl.training.callbacks.nonfinite import NonFiniteSteps
from nest_ssl.training.callbacks.problem_report import ProblemReport
from nest_ssl.training.callbacks.samples import ValidationSamples
from nest_ssl.training.callbacks.timing import RunEarlyStopping, RunTimer, StepTiming
from nest_ssl.training.checkpointing.checkpoint_files import CheckpointFiles, checkpoint_to_continue
from nest_ssl.training.checkpointing.checkpoints import RunCheckpoint
from nest_ssl.training.loggers.tags import GroupedMLFlowLogger, GroupedWandbLogger
from nest_ssl.training.run_files import (
    CONFIG,
    ENVIRONMENT,
    FILES,
    TENSORBOARD_SETTINGS,
    files_to_copy,
    next_number,
    refuse_foreign_files,
    set_earlier_files_aside,
)

_log = logging.getLogger(__name__)
DEFAULT_FOLDER = "nest_experiments"
_PACKAGES = ("nest_ssl", "torch", "lightning", "hydra-core", "omegaconf", "numpy", "soundfile", "soxr")


@dataclass(frozen=True)
class Experiment:
    """One run's place on disk. Deciding it writes nothing; `callbacks()` do, once the data and model are usable."""

    settings: ExperimentSettings
    folder: Path
    name: str
    resume_from: Path | None
    adjustments: Sequence[Adjustment] = ()  # of the configuration to this machine

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        dirpath = self.settings.checkpoint_callback_params.dirpath
        return Path(dirpath) if dirpath else self.folder / "checkpoints"

    def callbacks(self, cfg: DictConfig) -> list[Callback]:
        settings = self.settings
        callbacks: list[Callback] = [
            ExperimentFolder(self, cfg),
            NonFiniteSteps(self.folder / "nonfinite_batches", settings.max_nonfinite_steps),
        ]
        if settings.log_step_timing:
            callbacks.append(StepTiming())
        if settings.create_early_stopping_callback:
            callbacks.append(RunEarlyStopping(**vars(settings.early_stopping_callback_params)))
        if settings.max_time_per_run is not None:
            callbacks.append(RunTimer(settings.max_time_per_run))
        callbacks.append(ProblemReport(self.folder))
        if settings.log_samples:
            callbacks.append(ValidationSamples(self.folder / "samples"))
        if settings.create_checkpoint_callback:
            sigterm = settings.create_preemption_callback
            callbacks.append(RunCheckpoint(settings.checkpoint_callback_params, self.folder, self.name, sigterm))
        return callbacks

    def files(self) -> CheckpointFiles:
        return CheckpointFiles(background=self.settings.checkpoint_callback_params.async_save)

    def loggers(self) -> list[Logger]:
        loggers: list[Logger] = []
        if self.settings.create_tensorboard_logger:
            from nest_ssl.training.loggers.tensorboard import (
                PatientTensorBoardLogger,  # slow to import, and not always wanted
            )

            writer = {"save_dir": self.folder, "name": "", "version": "", **self.settings.summary_writer_kwargs}
            loggers.append(PatientTensorBoardLogger(**writer))
        if self.settings.create_wandb_logger:
            loggers.append(_wandb_logger(self.settings.wandb_logger_kwargs, self.folder))
        if self.settings.create_mlflow_logger:
            loggers.append(_mlflow_logger(self.settings.mlflow_logger_kwargs, self.folder, self.name))
        return loggers


class ExperimentFolder(Callback):
    """Makes the folder at the last moment before training, so that a run that cannot start leaves nothing behind."""

    def __init__(self, experiment: Experiment, cfg: DictConfig) -> None:
        self.experiment = experiment
        self.cfg = cfg
        self.records = True  # false for a start that trains nothing

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the first process's folder everyone's: each planned its own, maybe in another second."""
        planned, folder = self.experiment.folder, Path(trainer.strategy.broadcast(str(self.experiment.folder)))
        self.experiment = replace(self.experiment, folder=folder)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:  # checkpoints ask for themselves
            if isinstance(callback, NonFiniteSteps | ProblemReport | ValidationSamples) and callback.folder is not None:
                callback.folder = folder / callback.folder.relative_to(planned)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = self.experiment.folder
        if trainer.is_global_zero and self.records:
            try:
                self._write(folder)
            except OSError as error:
                raise NestError(f"{folder}: the run's folder cannot be written: {one_line(error)}") from error
        trainer.loggers = self.experiment.loggers()
        _log.info("run folder: %s", folder)

    def _write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        copies = files_to_copy(self.experiment.settings.files_to_copy, folder)
        files = [CONFIG, ENVIRONMENT, *copies]
        set_earlier_files_aside(folder, files)
        if self.experiment.settings.create_tensorboard_logger and not (folder / TENSORBOARD_SETTINGS).exists():
            files.append(TENSORBOARD_SETTINGS)
        environment = {**_environment(self.experiment.adjustments), FILES: files}
        contents = {  # in this order: the record of what the run writes comes before it
            ENVIRONMENT: json.dumps(environment, indent=2) + "\n",
            CONFIG: OmegaConf.to_yaml(self.cfg),
        }
        for name, content in contents.items():
            with atomic_write(folder / name) as temporary:
                temporary.write_text(content, encoding="utf-8")
        for path in copies.values():
            shutil.copy(path, folder)


def plan_experiment(
    config: Mapping[str, Any], trainer: Mapping[str, Any], adjustments: Sequence[Adjustment] = ()
) -> Experiment:
    """Where the run of this `exp_manager` node writes and what it continues, by NeMo's rules."""
    settings = read_settings(config)
    _check(settings, trainer)
    name = settings.name or "default"
    folder = _run_folder(settings, name)
    refuse_foreign_files(folder, [CONFIG, ENVIRONMENT, *files_to_copy(settings.files_to_copy, folder)])
    dirpath = settings.checkpoint_callback_params.dirpath
    checkpoints = Path(dirpath) if dirpath else folder / "checkpoints"
    return Experiment(settings, folder, name, _checkpoint_to_resume(settings, checkpoints), adjustments)


def _check(settings: ExperimentSettings, trainer: Mapping[str, Any]) -> None:
    if trainer.get("logger"):
        raise ConfigError("trainer.logger: exp_manager makes the loggers; set trainer.logger=false")
    if trainer.get("enable_checkpointing") and settings.create_checkpoint_callback:
        raise ConfigError(
            "trainer.enable_checkpointing: exp_manager writes the checkpoints; set it to false here, or set "
            "exp_manager.create_checkpoint_callback=false"
        )
    if "log_dir" in settings.summary_writer_kwargs:
        raise ConfigError("exp_manager.summary_writer_kwargs.log_dir: set exp_manager.exp_dir instead")
    if settings.create_wandb_logger:
        if not settings.wandb_logger_kwargs.get("name") or not settings.wandb_logger_kwargs.get("project"):
            raise ConfigError("exp_manager.wandb_logger_kwargs: set its name and its project")
        _check_installed("create_wandb_logger", "wandb")
    if settings.create_mlflow_logger:
        check_arguments(MLFlowLogger, settings.mlflow_logger_kwargs, "exp_manager.mlflow_logger_kwargs")
        _check_installed("create_mlflow_logger", "mlflow", "mlflow-skinny")


def _run_folder(settings: ExperimentSettings, name: str) -> Path:
    """`exp_dir/name/version`; a run that may be continued has no version, so that its next start finds it."""
    if settings.explicit_log_dir:
        return Path(settings.explicit_log_dir).absolute()
    base = Path(settings.exp_dir or DEFAULT_FOLDER).absolute() / name
    if settings.version:
        return base / str(settings.version)
    if settings.resume_if_exists:
        return base
    if settings.use_datetime_version:
        return base / time.strftime("%Y-%m-%d_%H-%M-%S")
    return base / f"version_{next_number(base, 'version_')}"


def _checkpoint_to_resume(settings: ExperimentSettings, checkpoints: Path) -> Path | None:
    """The last checkpoint of this folder, if runs continue; else the one named explicitly; else None."""
    named = Path(settings.resume_from_checkpoint) if settings.resume_from_checkpoint else None
    if named is not None and not named.is_file():
        raise ConfigError(f"exp_manager.resume_from_checkpoint: {str(named)!r} is not a file")
    if not settings.resume_if_exists:
        return named
    last = checkpoint_to_continue(checkpoints)
    if last is None and named is None and not settings.resume_ignore_no_checkpoint:
        raise ConfigError(
            f"exp_manager.resume_if_exists: there is no *-last.ckpt in {checkpoints}; to start from scratch, set "
            "exp_manager.resume_ignore_no_checkpoint=true"
        )
    return last or named


def _check_installed(switch: str, *packages: str) -> None:
    """Refuse a switch whose package is missing; one of several is enough."""
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            metadata.version(package)
            return
    raise ConfigError(f"exp_manager.{switch}: {packages[0]} is not installed; pip install {packages[-1]}")


def _wandb_logger(arguments: Mapping[str, Any], folder: Path) -> Logger:
    return GroupedWandbLogger(**{"save_dir": folder, **_given(arguments)})


def _mlflow_logger(arguments: Mapping[str, Any], folder: Path, name: str) -> Logger:
    """Into `mlruns` of the run's folder, unless the arguments or MLFLOW_TRACKING_URI say where to."""
    from mlflow.exceptions import MlflowException  # mlflow is an extra

    given = {"experiment_name": name, "run_name": folder.name, "save_dir": str(folder / "mlruns"), **_given(arguments)}
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # or MLflow 3 refuses folders
    try:
        return GroupedMLFlowLogger(**given)
    except MlflowException as error:
        raise ConfigError(f"exp_manager.create_mlflow_logger: {one_line(error)}") from error


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Without null, which is NeMo's way to say nothing."""
    return {name: value for name, value in arguments.items() if value is not None}


def _environment(adjustments: Sequence[Adjustment]) -> dict[str, Any]:
    """What the run depends on besides its configuration, and what of that is not what was asked for."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            continue
    adjusted = [
        {"key": change.key, "asked": _plain(change.old), "used": _plain(change.new), "reason": change.reason}
        for change in adjustments
    ]
    return {
        "command": sys.argv,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        **versions,
        "adjusted": adjusted,
    }


def _plain(value: Any) -> Any:
    """Without OmegaConf's lists, which JSON does not know."""
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
