"""The record of a run, which every checkpoint contains: its configuration, fingerprints of its data, and its machine.

`FormerRun` reads it when a run continues; continuation.py then compares the two runs.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.config.machine import processor
from nest_ssl.data.inspection.changes import write_lines
from nest_ssl.data.inspection.fingerprint import DataSet, Fingerprint, data_sets
from nest_ssl.errors import CheckpointError
from nest_ssl.shell import quoted
from nest_ssl.training.experiment import Experiment
from nest_ssl.training.run_folder import writable

RECORD = "nest_ssl"  # key of a checkpoint; neither Lightning nor NeMo reads it
# attributes of a schedule that decide its shape
_SCHEDULE_SHAPE = ("max_steps", "warmup_steps", "hold_steps", "constant_steps")


class RunRecord(Callback):
    """Writes the record of this run into its checkpoints, and the lines of its data sets into its folder.

    It also remembers when and at which step training began.
    """

    def __init__(self, cfg: DictConfig, experiment: Experiment) -> None:
        self.cfg = cfg
        self.experiment = experiment
        self.sets: dict[str, DataSet] | None = None  # from the start of training until the lines are written
        self.fingerprints: dict[str, Fingerprint] = {}
        self.first_step: int | None = None  # None if nothing was left to train
        self.started_at = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.take_fingerprints(pl_module)

    def take_fingerprints(self, model: LightningModule) -> None:
        """Compute the fingerprints of all data sets, once."""
        if self.sets is None:
            self.sets = dict(_data_sets_of(model))
            self.fingerprints = {key: data.fingerprint() for key, data in self.sets.items()}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the lines of the data sets into the run's folder, before the first checkpoint refers to them."""
        if trainer.is_global_zero and self.sets is not None:
            with writable(self.experiment.folder):
                write_lines(self.sets, self.fingerprints, self.experiment.folder)
        self.sets = None  # only the fingerprints are needed from here on
        self.first_step, self.started_at = trainer.global_step, time.monotonic()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[RECORD] = {
            "config": OmegaConf.to_container(self.cfg, resolve=True),
            "data": {key: fingerprint.plain() for key, fingerprint in self.fingerprints.items()},
            "machine": machine_of(trainer),
        }


@dataclass(frozen=True)
class FormerRun:
    """The run that wrote a checkpoint, as far as the checkpoint tells."""

    path: Path
    config: Mapping[str, Any] | None  # None if not recorded
    model_config: Mapping[str, Any] | None  # NeMo and older versions record it too
    data: Mapping[str, Fingerprint]
    machine: Mapping[str, Any]
    schedule: Mapping[str, Any]
    steps: int
    epochs: int  # complete
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, path: Path) -> FormerRun:
        """Read a checkpoint; raise CheckpointError if it has weights alone."""
        checkpoint = load_lightning_checkpoint(path, in_place=True)
        if not checkpoint.get("optimizer_states"):
            raise CheckpointError(
                f"{path}: holds weights alone, so no run can be continued from it; start a new one from them with "
                f"{quoted(f'init_from_ptl_ckpt={path}')}"
            )
        record = as_mapping(checkpoint.get(RECORD))
        data = {key: Fingerprint.from_plain(value) for key, value in as_mapping(record.get("data")).items()}
        schedules = checkpoint.get("lr_schedulers")
        schedule = as_mapping(schedules[0]) if isinstance(schedules, list) and schedules else {}
        fit_loop = as_mapping(as_mapping(checkpoint.get("loops")).get("fit_loop"))
        epochs = as_mapping(as_mapping(fit_loop.get("epoch_progress")).get("current")).get("processed")
        steps = checkpoint.get("global_step")
        return cls(
            path=path,
            config=as_mapping(record.get("config")) or None,
            model_config=as_mapping(as_mapping(checkpoint.get("hyper_parameters")).get("cfg")) or None,
            data={key: value for key, value in data.items() if value is not None},
            machine=as_mapping(record.get("machine")),
            schedule={name: schedule[name] for name in _SCHEDULE_SHAPE if name in schedule},  # no tensors
            steps=steps if isinstance(steps, int) else 0,
            epochs=epochs if isinstance(epochs, int) else 0,
            shapes={name: tuple(tensor.shape) for name, tensor in checkpoint["state_dict"].items()},
        )

    def is_complete(self, trainer: Trainer) -> bool:
        """Return whether nothing is left to train for this trainer."""
        most_epochs = trainer.max_epochs
        by_steps = 0 <= trainer.max_steps <= self.steps
        return by_steps or (most_epochs is not None and 0 <= most_epochs <= self.epochs)


def _data_sets_of(model: Any) -> Iterator[tuple[str, DataSet]]:
    """Yield the data sets that a model trains and validates on, by key of the configuration."""
    loaders = [("model.train_ds", model.train_dataloader(), "train_ds")]
    validation = model.val_dataloader()
    for number, loader in enumerate(validation):
        key = "model.validation_ds" if len(validation) == 1 else f"model.validation_ds[{number}]"
        loaders.append((key, loader, "validation_ds"))
    for key, loader, node in loaders:
        yield from data_sets(loader.dataset, model.settings.get(node) or {}, key).items()


def machine_of(trainer: Trainer) -> dict[str, Any]:
    """Return what the last bits of a result depend on besides the configuration."""
    device = trainer.strategy.root_device
    facts: dict[str, Any] = {"torch": str(torch.__version__), "system": f"{platform.system()} {platform.machine()}"}
    if device.type == "cuda":
        return {**facts, "device": torch.cuda.get_device_name(device)}
    return {**facts, "device": processor(), "threads": torch.get_num_threads()}


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a table of a checkpoint, which may contain anything; empty if it is no table."""
    return value if isinstance(value, Mapping) else {}
