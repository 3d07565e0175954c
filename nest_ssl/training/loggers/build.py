"""The loggers that an `exp_manager` node asks for: TensorBoard, W&B and MLflow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger

from nest_ssl.config.schema import ExperimentSettings
from nest_ssl.config.targets import check_arguments
from nest_ssl.errors import ConfigError, one_line
from nest_ssl.training.loggers.tags import GroupedTags


class GroupedWandbLogger(GroupedTags, WandbLogger):
    """W&B, with metrics in groups."""


class GroupedMLFlowLogger(GroupedTags, MLFlowLogger):
    """MLflow, with metrics in groups."""


def check_loggers(settings: ExperimentSettings) -> None:
    """Raise ConfigError for arguments that a logger would refuse later, and for a package that is missing."""
    if "log_dir" in settings.summary_writer_kwargs:
        raise ConfigError("exp_manager.summary_writer_kwargs.log_dir: set exp_manager.exp_dir instead")
    if settings.create_wandb_logger:
        if not settings.wandb_logger_kwargs.get("name") or not settings.wandb_logger_kwargs.get("project"):
            raise ConfigError("exp_manager.wandb_logger_kwargs: set its name and its project")
        _check_installed("create_wandb_logger", "wandb")
    if settings.create_mlflow_logger:
        check_arguments(MLFlowLogger, settings.mlflow_logger_kwargs, "exp_manager.mlflow_logger_kwargs")
        _check_installed("create_mlflow_logger", "mlflow", "mlflow-skinny")


def _check_installed(switch: str, *packages: str) -> None:
    """Raise ConfigError if none of these packages is installed."""
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            metadata.version(package)
            return
    raise ConfigError(f"exp_manager.{switch}: {packages[0]} is not installed; pip install {packages[-1]}")


def build_loggers(settings: ExperimentSettings, folder: Path, name: str) -> list[Logger]:
    """Return the loggers of the run `name`, which write into its folder."""
    loggers: list[Logger] = []
    if settings.create_tensorboard_logger:
        from nest_ssl.training.loggers.tensorboard import PatientTensorBoardLogger  # slow to import

        writer = {"save_dir": folder, "name": "", "version": "", **settings.summary_writer_kwargs}
        loggers.append(PatientTensorBoardLogger(**writer))
    if settings.create_wandb_logger:
        loggers.append(GroupedWandbLogger(**{"save_dir": folder, **_given(settings.wandb_logger_kwargs)}))
    if settings.create_mlflow_logger:
        loggers.append(_mlflow_logger(settings.mlflow_logger_kwargs, folder, name))
    return loggers


def _mlflow_logger(arguments: Mapping[str, Any], folder: Path, name: str) -> Logger:
    """Return a logger into `mlruns` of the run's folder, unless the arguments or MLFLOW_TRACKING_URI name a place."""
    from mlflow.exceptions import MlflowException  # mlflow is an extra

    given = {"experiment_name": name, "run_name": folder.name, "save_dir": str(folder / "mlruns"), **_given(arguments)}
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # or MLflow 3 refuses folders
    try:
        return GroupedMLFlowLogger(**given)
    except MlflowException as error:
        raise ConfigError(f"exp_manager.create_mlflow_logger: {one_line(error)}") from error


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without null, which in NeMo's configurations means that nothing is given."""
    return {name: value for name, value in arguments.items() if value is not None}
