"""The loggers of an `exp_manager` node (TensorBoard, W&B, MLflow), and the groups in which they show metrics.

Within a run a metric has the name that `monitor` of a checkpoint takes (`val_accuracy`); loggers show it in a group
(`val/accuracy`). NeMo's names stay as they are: `train_loss`, `val_loss`, `learning_rate`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger

from nest_ssl.config.schema import ExperimentSettings
from nest_ssl.config.targets import check_arguments
from nest_ssl.errors import ConfigError, one_line

_TAGS = {
    "train_accuracy": "train/accuracy",
    **{name: f"train/{name}" for name in ("masked_share", "gradient_norm", "weight_norm")},
    **{name: f"train/{name}" for name in ("skipped_audio", "batches_without_masks", "nonfinite_steps")},
    "val_accuracy": "val/accuracy",
    "val_masked_share": "val/masked_share",
    **{name: f"speed/{name}" for name in ("audio_seconds_per_second", "data_wait_share", "padding_efficiency")},
}
_NAMES = {tag: name for name, tag in _TAGS.items()}
_NAME_OF_BOOK = re.compile(r"codebook_(?P<book>\d+)/(?P<number>\w+)")
_TAG_OF_BOOK = re.compile(r"codebook/(?P<number>\w+)_(?P<book>\d+)")


def tag_of(name: str) -> str:
    """Return `val/accuracy` for `val_accuracy`, `codebook/target_coverage_0` for `codebook_0/target_coverage`, ..."""
    book = _NAME_OF_BOOK.fullmatch(name)
    return f"codebook/{book['number']}_{book['book']}" if book else _TAGS.get(name, name)


def name_of(tag: str) -> str:
    """Return the name of a tag; runs of older versions have no groups, so there the tag is the name."""
    book = _TAG_OF_BOOK.fullmatch(tag)
    return f"codebook_{book['book']}/{book['number']}" if book else _NAMES.get(tag, tag)


class GroupedTags(Logger):
    """A base class that goes before a logger of Lightning: it logs each metric in its group."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        super().log_metrics({tag_of(name): value for name, value in metrics.items()}, step)  # type: ignore[safe-super]


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
