"""Continue a run: report what changed since its checkpoint, and refuse changes that cannot take effect.

The configuration is compared before the model is built, weights before training starts, data and schedule before
anything is written into the run's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from nest_ssl.data.inspection.changes import DataChange, compare, read_lines
from nest_ssl.data.inspection.fingerprint import DataSet
from nest_ssl.data.loading.elastic_resume import RESTART
from nest_ssl.errors import CheckpointError, ConfigError
from nest_ssl.shell import quoted
from nest_ssl.training.checkpointing.continued_keys import (
    OTHER_MODEL,
    KeyChange,
    another_order,
    compare_configurations,
    shown,
)
from nest_ssl.training.checkpointing.run_record import FormerRun, RunRecord, as_mapping, machine_of
from nest_ssl.training.experiment import Experiment, ExperimentFolder
from nest_ssl.training.optim.schedules import WarmupPolicy
from nest_ssl.training.run_folder import shown_path

_log = logging.getLogger(__name__)
_TRAINING_DATA = "model.train_ds.manifest_filepath"
_MOST_SHOWN = 4  # refused keys


class Continuation(RunRecord):
    """Compares a run with the checkpoint that it continues from, and writes the record of the run."""

    def __init__(self, cfg: DictConfig, experiment: Experiment, checkpoint: Path) -> None:
        super().__init__(cfg, experiment)
        self.former = FormerRun.read(checkpoint)
        self._restarts_epoch = False
        self._compare_configuration()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse weights that do not fit, in one line instead of torch's many."""
        own = {name: tuple(tensor.shape) for name, tensor in pl_module.state_dict().items()}
        there = self.former.shapes
        for name in (*own, *there):
            if own.get(name) != there.get(name):
                sizes = [str(shape) if shape else "nothing" for shape in (there.get(name), own.get(name))]
                raise CheckpointError(
                    f"{self.former.path.name}: holds another model: {name} is {sizes[0]} there and {sizes[1]} here; "
                    f"{self._ways_out(same_model=False)}"
                )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Make the loader restart the epoch if the position in it is no longer valid."""
        self.take_fingerprints(pl_module)
        if not self._restarts_epoch:
            return
        loops = as_mapping(as_mapping(checkpoint.get("loops")).get("fit_loop"))
        for loader in as_mapping(loops.get("state_dict")).get("combined_loader") or []:
            for process in as_mapping(loader).get("processes") or []:
                process[RESTART] = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        self._compare_schedule(trainer)
        self._compare_machine(machine_of(trainer))
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, ExperimentFolder):  # config.yaml is what the weights were trained with
                recorded = (self.experiment.folder / "config.yaml").exists()
                callback.records = not (recorded and self.former.is_complete(trainer))

    def _compare_configuration(self) -> None:
        former = self.former
        now: Any = OmegaConf.to_container(self.cfg, resolve=True)
        if former.config is None:
            _log.warning(
                "%s: has no record of its run (an older version, or NeMo, wrote it): %s could not be compared",
                shown_path(former.path),
                "trainer, seed and data" if former.model_config else "configuration and data",
            )
            old: Mapping[str, Any] = {**now, "model": former.model_config or now["model"]}
        else:
            old = former.config
        changes = compare_configurations(old, now)
        refused = [change for change in changes if not change.takes_effect]
        if refused:
            raise ConfigError(self._refusal(refused))
        if changes:
            listed = "; ".join(map(str, changes))
            _log.info("changed since %s was written, and in effect from here on: %s", former.path.name, listed)
        if another_order(changes, now["model"].get("train_ds") or {}):
            self._restarts_epoch = True
            _log.warning("model.train_ds: batches are made in another way than before, so the epoch restarts")

    def _refusal(self, refused: Sequence[KeyChange]) -> str:
        """Return the error of one line; keys of the model come first, as others often follow from them."""
        refused = sorted(refused, key=lambda change: (change.reason != OTHER_MODEL, "encoder" not in change.key))
        same_model = refused[0].reason != OTHER_MODEL
        more = f" and {len(refused) - _MOST_SHOWN} more" if len(refused) > _MOST_SHOWN else ""
        keys = "; ".join(map(str, refused[:_MOST_SHOWN]))
        return (
            f"{keys}{more}: cannot take effect, because {self.former.path.name} {refused[0].reason}; "
            f"{self._ways_out(same_model)}"
        )

    def _ways_out(self, same_model: bool) -> str:
        settings, path = self.experiment.settings, self.former.path
        weights = quoted(f"init_from_ptl_ckpt={shown_path(path)}")
        if path.parent.parent != self.experiment.folder and settings.resume_from_checkpoint:
            restart = "leave exp_manager.resume_from_checkpoint out to train from the beginning"
            return f"keep the former value, or {restart}" + (f", or give {weights} in its place" if same_model else "")
        name = "name=NEW" if self.cfg.get("name") == settings.name else "exp_manager.name=NEW"
        if settings.explicit_log_dir:
            name = "exp_manager.explicit_log_dir=NEW"
        if settings.checkpoint_callback_params.dirpath:  # where checkpoints are looked for, whatever the run's name is
            name += " exp_manager.checkpoint_callback_params.dirpath=NEW"
        from_weights = f", {name} {weights} from these weights" if same_model else ""
        return f"keep the former value, or train a new run: {name} from the beginning{from_weights}"

    def take_fingerprints(self, model: LightningModule) -> None:
        """Compute the fingerprints and compare them with the checkpoint's, once."""
        known = self.sets is not None
        super().take_fingerprints(model)
        if known or not self.former.data:
            return
        for key, data in (self.sets or {}).items():
            change = self._change(key, data)
            if change is not None:
                self._report(key, change)

    def _change(self, key: str, data: DataSet) -> DataChange | None:
        old, new = self.former.data.get(key), self.fingerprints[key]
        if old is None:
            return DataChange("a new set")
        if old == new:
            return None
        folders = [self.experiment.folder, self.former.path.parent.parent]
        return compare(old, new, read_lines(key, self.former.data, folders), data)

    def _report(self, key: str, change: DataChange) -> None:
        if change.same_order:
            _log.info("%s: %s", key, change.what)
        elif key == _TRAINING_DATA and change.nothing_in_common:
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

    def _compare_schedule(self, trainer: Trainer) -> None:
        """Tell what the checkpoint's schedule, which continues unchanged, means for the length of this run."""
        former = self.former
        for entry in trainer.lr_scheduler_configs:
            schedule: Any = entry.scheduler
            if not isinstance(schedule, WarmupPolicy) or "max_steps" not in former.schedule:
                continue
            called, end = type(schedule).__name__, former.schedule["max_steps"]
            if schedule.ends_at_max_steps and end and (schedule.max_steps is None or schedule.max_steps > end):
                longer = "without end" if schedule.max_steps is None else f"to step {schedule.max_steps}"
                raise ConfigError(
                    f"trainer.max_steps: the {called} schedule of {former.path.name} ends at step {end}, and its rate "
                    f"stays at min_lr from there on; this run would go {longer}. trainer.max_steps={end} trains to the "
                    f"schedule's end; {self._ways_out(same_model=True)}"
                )
            kept = {name: value for name, value in former.schedule.items() if value != getattr(schedule, name, None)}
            if kept and (schedule.ends_at_max_steps or kept.keys() != {"max_steps"}):
                values = ", ".join(f"{name} {shown(value)}" for name, value in kept.items())
                _log.warning("the %s schedule continues with its original shape: %s", called, values)
                OmegaConf.update(self.cfg, "model.optim.sched.max_steps", end, force_add=True)

    def _compare_machine(self, here: Mapping[str, Any]) -> None:
        before = self.former.machine
        changes = [KeyChange(name, before[name], now) for name, now in here.items() if before.get(name, now) != now]
        if changes:
            _log.info(
                "computed on other hardware or software than before (%s): results may differ in their last bits",
                "; ".join(map(str, changes)),
            )
