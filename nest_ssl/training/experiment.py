"""The experiment of a run: its folder, the checkpoint that it continues, and the callbacks and loggers that write."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from nest_ssl.config.machine import Adjustment
from nest_ssl.config.schema import ExperimentSettings, read
from nest_ssl.errors import ConfigError
from nest_ssl.training.callbacks.problems import NonFiniteSteps, ProblemReport
from nest_ssl.training.callbacks.samples import ValidationSamples
from nest_ssl.training.callbacks.stopping import RunEarlyStopping, RunTimer
from nest_ssl.training.callbacks.throughput import StepTiming
from nest_ssl.training.checkpointing.checkpoint_files import CheckpointFiles, checkpoint_to_continue
from nest_ssl.training.checkpointing.checkpoints import RunCheckpoint
from nest_ssl.training.loggers.build import build_loggers, check_loggers
from nest_ssl.training.run_folder import (
    CONFIG,
    ENVIRONMENT,
    files_to_copy,
    next_number,
    refuse_foreign_files,
    write_run_files,
)

_log = logging.getLogger(__name__)
DEFAULT_FOLDER = "nest_experiments"


@dataclass(frozen=True)
class Experiment:
    """One run's place on disk. Planning writes nothing; the callbacks write, once data and model are known to work."""

    settings: ExperimentSettings
    folder: Path
    name: str
    adjustments: Sequence[Adjustment] = ()  # of the configuration to this machine

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        dirpath = self.settings.checkpoint_callback_params.dirpath
        return Path(dirpath) if dirpath else self.folder / "checkpoints"

    def checkpoint_to_resume(self) -> Path | None:
        """Return the last checkpoint of this folder if the run resumes; else the one that is named; else None.

        Call it while the folder is locked: another run would replace its checkpoints.
        """
        settings = self.settings
        named = Path(settings.resume_from_checkpoint) if settings.resume_from_checkpoint else None
        if named is not None and not named.is_file():
            raise ConfigError(f"exp_manager.resume_from_checkpoint: {str(named)!r} is not a file")
        if not settings.resume_if_exists:
            return named
        last = checkpoint_to_continue(self.checkpoints)
        if last is None and named is None and not settings.resume_ignore_no_checkpoint:
            raise ConfigError(
                f"exp_manager.resume_if_exists: there is no *-last.ckpt in {self.checkpoints}; to start from scratch, "
                "set exp_manager.resume_ignore_no_checkpoint=true"
            )
        return last or named

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
        return build_loggers(self.settings, self.folder, self.name)


class ExperimentFolder(Callback):
    """Makes the folder and the loggers just before training, so that a run that cannot start writes nothing."""

    def __init__(self, experiment: Experiment, cfg: DictConfig) -> None:
        self.experiment = experiment
        self.cfg = cfg
        self.records = True  # false for a start that trains nothing

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Use the folder of rank 0 on all ranks: a name with the time may differ between them."""
        planned, folder = self.experiment.folder, Path(trainer.strategy.broadcast(str(self.experiment.folder)))
        self.experiment = replace(self.experiment, folder=folder)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:  # RunCheckpoint broadcasts its own folder
            if isinstance(callback, NonFiniteSteps | ProblemReport | ValidationSamples) and callback.folder is not None:
                callback.folder = folder / callback.folder.relative_to(planned)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and self.records:
            write_run_files(self.experiment, self.cfg)
        trainer.loggers = self.experiment.loggers()
        _log.info("run folder: %s", self.experiment.folder)


def plan_experiment(
    config: Mapping[str, Any], trainer: Mapping[str, Any], adjustments: Sequence[Adjustment] = ()
) -> Experiment:
    """Decide where the run of this `exp_manager` node writes, by NeMo's rules."""
    settings = read(ExperimentSettings, config, "exp_manager")
    _check(settings, trainer)
    name = settings.name or "default"
    folder = _run_folder(settings, name)
    refuse_foreign_files(folder, [CONFIG, ENVIRONMENT, *files_to_copy(settings.files_to_copy, folder)])
    return Experiment(settings, folder, name, adjustments)


def _check(settings: ExperimentSettings, trainer: Mapping[str, Any]) -> None:
    if trainer.get("logger"):
        raise ConfigError("trainer.logger: exp_manager makes the loggers; set trainer.logger=false")
    if trainer.get("enable_checkpointing") and settings.create_checkpoint_callback:
        raise ConfigError(
            "trainer.enable_checkpointing: exp_manager writes the checkpoints; set it to false here, or set "
            "exp_manager.create_checkpoint_callback=false"
        )
    check_loggers(settings)


def _run_folder(settings: ExperimentSettings, name: str) -> Path:
    """Return `exp_dir/name/version`; a run that can be resumed has no version, so that its next start finds it."""
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
