"""Continuing a run: what changed since its checkpoint is said, and what cannot take effect is refused.

Every checkpoint holds a record: the configuration that was used, fingerprints of the data, and on what it was computed.
The configuration is compared before the model is built, weights before training starts, data and schedule before the
run's folder is touched.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.config.machine import processor
from nest_ssl.data.inspection.changes import DataChange, compare, read_lines, write_lines
from nest_ssl.data.inspection.fingerprint import DataSet, Fingerprint, data_sets
from nest_ssl.data.loading.resumable import RESTART
from nest_ssl.errors import CheckpointError, ConfigError, NestError, one_line
from nest_ssl.shell import quoted
from nest_ssl.training.checkpointing.continued_keys import (
    OTHER_MODEL,
    KeyChange,
    another_order,
    compare_configurations,
    shown,
)
from nest_ssl.training.experiment import Experiment, ExperimentFolder
from nest_ssl.training.optim.schedules import WarmupPolicy

_log = logging.getLogger(__name__)
RECORD = "nest_ssl"  # key of a checkpoint; neither Lightning nor NeMo reads it
_TRAINING_DATA = "model.train_ds.manifest_filepath"
_MOST_SHOWN = 4  # refused keys
_SHAPE = ("max_steps", "warmup_steps", "hold_steps", "constant_steps")  # attributes of a schedule that decide its shape


@dataclass(frozen=True)
class Former:
    """What is known of the run that wrote a checkpoint."""

    path: Path
    config: Mapping[str, Any] | None  # None: not recorded
    model_config: Mapping[str, Any] | None  # recorded by NeMo and by older versions too
    data: Mapping[str, Fingerprint]
    machine: Mapping[str, Any]
    schedule: Mapping[str, Any]
    steps: int
    epochs: int  # complete ones
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, path: Path) -> Former:
        checkpoint = load_lightning_checkpoint(path, in_place=True)
        if not checkpoint.get("optimizer_states"):
            raise CheckpointError(
                f"{path}: holds weights alone, so no run can be continued from it; start a new one from them with "
                f"{quoted(f'init_from_ptl_ckpt={path}')}"
            )
        record = _mapping(checkpoint.get(RECORD))
        data = {key: Fingerprint.from_plain(value) for key, value in _mapping(record.get("data")).items()}
        schedules = checkpoint.get("lr_schedulers")
        schedule = _mapping(schedules[0]) if isinstance(schedules, list) and schedules else {}
        fit_loop = _mapping(_mapping(checkpoint.get("loops")).get("fit_loop"))
        epochs = _mapping(_mapping(fit_loop.get("epoch_progress")).get("current")).get("processed")
        steps = checkpoint.get("global_step")
        return cls(
            path=path,
            config=_mapping(record.get("config")) or None,
            model_config=_mapping(_mapping(checkpoint.get("hyper_parameters")).get("cfg")) or None,
            data={key: value for key, value in data.items() if value is not None},
            machine=_mapping(record.get("machine")),
            schedule={name: schedule[name] for name in _SHAPE if name in schedule},  # and nothing that maps the file
            steps=steps if isinstance(steps, int) else 0,
            epochs=epochs if isinstance(epochs, int) else 0,
            shapes={name: tuple(tensor.shape) for name, tensor in checkpoint["state_dict"].items()},
        )

    def is_complete(self, trainer: Trainer) -> bool:
        """Whether this trainer finds nothing left to do."""
        most_epochs = trainer.max_epochs
        by_steps = 0 <= trainer.max_steps <= self.steps
        return by_steps or (most_epochs is not None and 0 <= most_epochs <= self.epochs)


class Continuation(Callback):
    """Compares a run with the checkpoint that it goes on from, and writes the record into its own checkpoints."""

    def __init__(self, cfg: DictConfig, experiment: Experiment) -> None:
        self.cfg = cfg
        self.experiment = experiment
        self.former = None if experiment.resume_from is None else Former.read(experiment.resume_from)
        self._restarts_epoch = False
        self._sets: dict[str, DataSet] | None = None
        self._fingerprints: dict[str, Fingerprint] = {}
        if self.former is not None:
            self._compare_configuration(self.former)

    def check_weights(self, model: LightningModule) -> None:
        """Refuse weights that do not fit, in one line rather than in torch's many."""
        if self.former is None:
            return
        own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        there = self.former.shapes
        for name in (*own, *there):
            if own.get(name) != there.get(name):
                sizes = [str(shape) if shape else "nothing" for shape in (there.get(name), own.get(name))]
                raise CheckpointError(
                    f"{self.former.path.name}: holds another model: {name} is {sizes[0]} there and {sizes[1]} here; "
                    f"{self._ways_out(same_model=False)}"
                )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Make the loader restart its epoch where the place in it means nothing any more."""
        self._compare_data(pl_module)
        if not self._restarts_epoch:
            return
        loops = _mapping(_mapping(checkpoint.get("loops")).get("fit_loop"))
        for loader in _mapping(loops.get("state_dict")).get("combined_loader") or []:
            for process in _mapping(loader).get("processes") or []:
                process[RESTART] = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._compare_data(pl_module)
        if self.former is not None:
            self._compare_schedule(self.former, trainer)
            self._compare_machine(self.former, _machine(trainer))
            callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
            for callback in callbacks:
                if isinstance(callback, ExperimentFolder):  # config.yaml is what the weights were trained with
                    recorded = (self.experiment.folder / "config.yaml").exists()
                    callback.records = not (recorded and self.former.is_complete(trainer))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the lines of the data beside the first checkpoint that will refer to them."""
        if trainer.is_global_zero and self._sets is not None:
            try:
                write_lines(self._sets, self._fingerprints, self.experiment.folder)
            except OSError as error:
                folder = self.experiment.folder
                raise NestError(f"{folder}: the run's folder cannot be written: {one_line(error)}") from error
        self._sets = None  # only the fingerprints are needed from here on

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[RECORD] = {
            "config": OmegaConf.to_container(self.cfg, resolve=True),
            "data": {key: fingerprint.plain() for key, fingerprint in self._fingerprints.items()},
            "machine": _machine(trainer),
        }

    def _compare_configuration(self, former: Former) -> None:
        now: Any = OmegaConf.to_container(self.cfg, resolve=True)
        if former.config is None:
            _log.warning(
                "%s: has no record of its run (an older version, or NeMo, wrote it): %s could not be compared",
                _short(former.path),
                "trainer, seed and data" if former.model_config else "configuration and data",
            )
            old: Mapping[str, Any] = {**now, "model": former.model_config or now["model"]}
        else:
            old = former.config
        changes = compare_configurations(old, now)
        refused = [change for change in changes if not change.takes_effect]
        if refused:
            raise ConfigError(self._refusal(former, refused))
        if changes:
            said = "; ".join(map(str, changes))
            _log.info("changed since %s was written, and in effect from here on: %s", former.path.name, said)
        if another_order(changes, now["model"].get("train_ds") or {}):
            self._restarts_epoch = True
            _log.warning("model.train_ds: batches are made in another way than before, so the epoch restarts")

    def _refusal(self, former: Former, refused: Sequence[KeyChange]) -> str:
        """In one line; what decides about the model first, because the rest often follows from it."""
        refused = sorted(refused, key=lambda change: (change.reason != OTHER_MODEL, "encoder" not in change.key))
        same_model = refused[0].reason != OTHER_MODEL
        more = f" and {len(refused) - _MOST_SHOWN} more" if len(refused) > _MOST_SHOWN else ""
        keys = "; ".join(map(str, refused[:_MOST_SHOWN]))
        return (
            f"{keys}{more}: cannot take effect, because {former.path.name} {refused[0].reason}; "
            f"{self._ways_out(same_model)}"
        )

    def _ways_out(self, same_model: bool) -> str:
        assert self.former is not None
        settings, path = self.experiment.settings, self.former.path
        weights = quoted(f"init_from_ptl_ckpt={_short(path)}")
        if path.parent.parent != self.experiment.folder and settings.resume_from_checkpoint:
            anew = "leave exp_manager.resume_from_checkpoint out to train from the beginning"
            return f"keep the former value, or {anew}" + (f", or give {weights} in its place" if same_model else "")
        name = "name=NEW" if self.cfg.get("name") == settings.name else "exp_manager.name=NEW"
        if settings.explicit_log_dir:
            name = "exp_manager.explicit_log_dir=NEW"
        if settings.checkpoint_callback_params.dirpath:  # where checkpoints are looked for, whatever the run's name is
            name += " exp_manager.checkpoint_callback_params.dirpath=NEW"
        from_weights = f", {name} {weights} from these weights" if same_model else ""
        return f"keep the former value, or train a new run: {name} from the beginning{from_weights}"

    def _compare_data(self, model: LightningModule) -> None:
        if self._sets is not None:
            return
        self._sets = dict(_sets(model))
        self._fingerprints = {key: data.fingerprint() for key, data in self._sets.items()}
        if self.former is None or not self.former.data:
            return
        for key, data in self._sets.items():
            change = self._change(key, data)
            if change is not None:
                self._tell(key, change)

    def _change(self, key: str, data: DataSet) -> DataChange | None:
        assert self.former is not None
        old, new = self.former.data.get(key), self._fingerprints[key]
        if old is None:
            return DataChange("a new set")
        if old == new:
            return None
        folders = [self.experiment.folder, self.former.path.parent.parent]
        return compare(old, new, read_lines(key, self.former.data, folders), data)

    def _tell(self, key: str, change: DataChange) -> None:
        if change.same_order:
            _log.info("%s: %s", key, change.what)
        elif key == _TRAINING_DATA and change.nothing_in_common:
            assert self.former is not None
            raise ConfigError(
                f"{key}: not one of these utterances is among those that {self.former.path.name} was trained on "
                f"({change.what}); {self._ways_out(same_model=True)}"
            )
        elif key == _TRAINING_DATA:
            self._restarts_epoch = True
            _log.warning("%s: %s; the epoch restarts with this data", key, change.what)
        elif key.startswith("model.validation_ds"):
            _log.warning("%s: %s; val_loss before and after cannot be compared", key, change.what)
        else:
            _log.warning("%s: %s", key, change.what)

    def _compare_schedule(self, former: Former, trainer: Trainer) -> None:
        """The checkpoint's schedule goes on, whatever the length of this run is."""
        for entry in trainer.lr_scheduler_configs:
            schedule: Any = entry.scheduler
            if not isinstance(schedule, WarmupPolicy) or "max_steps" not in former.schedule:
                continue
            name, end = type(schedule).__name__, former.schedule["max_steps"]
            if schedule.ends_at_max_steps and end and (schedule.max_steps is None or schedule.max_steps > end):
                longer = "without end" if schedule.max_steps is None else f"to step {schedule.max_steps}"
                raise ConfigError(
                    f"trainer.max_steps: the {name} schedule of {former.path.name} ends at step {end}, and its rate "
                    f"stays at min_lr from there on; this run would go {longer}. trainer.max_steps={end} trains to the "
                    f"schedule's end; {self._ways_out(same_model=True)}"
                )
            kept = {
                attribute: former.schedule[attribute]
                for attribute in _SHAPE
                if attribute in former.schedule and former.schedule[attribute] != getattr(schedule, attribute, None)
            }
            if kept and (schedule.ends_at_max_steps or kept.keys() != {"max_steps"}):
                values = ", ".join(f"{attribute} {shown(value)}" for attribute, value in kept.items())
                _log.warning("the %s schedule goes on with the shape that it began with: %s", name, values)
                OmegaConf.update(self.cfg, "model.optim.sched.max_steps", end, force_add=True)

    def _compare_machine(self, former: Former, here: Mapping[str, Any]) -> None:
        differing = [name for name in here if name in former.machine and former.machine[name] != here[name]]
        if differing:
            changes = "; ".join(f"{name}: {shown(former.machine[name])} -> {shown(here[name])}" for name in differing)
            _log.info("computed on something else than before (%s): results agree but for their last bits", changes)


def _sets(model: Any) -> Iterator[tuple[str, DataSet]]:
    """Everything that this model trains and validates on, by key of the configuration."""
    loaders = [("model.train_ds", model.train_dataloader(), "train_ds")]
    validation = model.val_dataloader()
    for number, loader in enumerate(validation):
        key = "model.validation_ds" if len(validation) == 1 else f"model.validation_ds[{number}]"
        loaders.append((key, loader, "validation_ds"))
    for key, loader, node in loaders:
        yield from data_sets(loader.dataset, model.settings.get(node) or {}, key).items()


def _machine(trainer: Trainer) -> dict[str, Any]:
    """What decides the last bits of a result, besides the configuration."""
    device = trainer.strategy.root_device
    facts: dict[str, Any] = {"torch": str(torch.__version__), "system": f"{platform.system()} {platform.machine()}"}
    if device.type == "cuda":
        return {**facts, "device": torch.cuda.get_device_name(device)}
    return {**facts, "device": processor()[0], "threads": torch.get_num_threads()}


def _mapping(value: Any) -> Mapping[str, Any]:
    """A table of a checkpoint, which may hold anything."""
    return value if isinstance(value, Mapping) else {}


def _short(path: Path) -> str:
    """Relative to the working directory where it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
