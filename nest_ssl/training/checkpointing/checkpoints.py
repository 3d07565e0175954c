"""Writes checkpoints: the best, the last, and `.nemo` archives."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig
from torch import Tensor

from nest_ssl.atomic import remove_leftovers
from nest_ssl.checkpoint import SavedModel, load_lightning_checkpoint, write_nemo
from nest_ssl.compat import monitored_values, restore_loader_position, skips_saving
from nest_ssl.config.schema import CheckpointSettings
from nest_ssl.errors import CheckpointError
from nest_ssl.training.checkpointing.checkpoint_files import LAST, CheckpointFiles
from nest_ssl.training.checkpointing.within_epoch import keep_epoch_unfinished

_log = logging.getLogger(__name__)
_BOOKKEEPING_FIELDS = (  # of ModelCheckpoint, which file is which: restored after a failed write
    *("best_k_models", "best_model_path", "best_model_score", "kth_best_model_path", "kth_value", "current_score"),
    *("last_model_path", "_last_checkpoint_saved", "_last_global_step_saved", "_nemo_of"),
)


class RunCheckpoint(ModelCheckpoint):
    """Lightning's checkpoints as NeMo writes them: `<filename>-last.ckpt` after every validation and at the end of the
    run, and `<name>.nemo` beside it."""

    files: CheckpointFiles  # the trainer's file access

    def __init__(self, settings: CheckpointSettings, folder: Path, name: str, save_on_sigterm: bool) -> None:
        filename = settings.filename or f"{name}--{{{settings.monitor}:.4f}}-{{epoch}}"
        seconds = settings.train_time_interval
        super().__init__(
            dirpath=settings.dirpath or folder / "checkpoints",
            filename=filename,
            monitor=settings.monitor,
            verbose=False,
            save_last=settings.save_last,
            save_top_k=settings.save_top_k,
            save_weights_only=settings.save_weights_only,
            mode=settings.mode,
            auto_insert_metric_name=settings.auto_insert_metric_name,
            every_n_train_steps=settings.every_n_train_steps,
            train_time_interval=None if seconds is None else timedelta(seconds=seconds),
            every_n_epochs=settings.every_n_epochs,
            save_on_train_epoch_end=settings.save_on_train_epoch_end,
        )
        self.CHECKPOINT_NAME_LAST = filename + LAST
        self.settings = settings
        self.save_on_sigterm = save_on_sigterm
        self._archive = f"{settings.prefix or name}{settings.postfix}"
        # Step and best checkpoint at the time the archive was written; None until this process has written it.
        self._nemo_of: tuple[int, str] | None = None
        self._trains = False
        self._resumed_from_time: int | None = None  # when the resumed checkpoint was written, in ns since 1970
        self._bookkeeping: dict[str, Any] = {}  # values before the present write
        self._failure: str | None = None  # why a write failed

    @property
    def nemo_path(self) -> Path:
        return Path(self.dirpath or "") / self._archive

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if trainer.is_global_zero:
            remove_leftovers(Path(self.dirpath or ""), f"*{self.FILE_EXTENSION}")
        assert isinstance(trainer.strategy.checkpoint_io, CheckpointFiles)
        self.files = trainer.strategy.checkpoint_io

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._trains = True
        self._last_global_step_saved = trainer.global_step  # nothing new to save before the first step
        self._last_checkpoint_saved = ""
        if trainer.ckpt_path is not None and Path(trainer.ckpt_path).parent == Path(self.dirpath or ""):
            self.last_model_path = str(trainer.ckpt_path)  # the next `-last` replaces it
            if trainer.is_global_zero:
                self._resumed_from_time = Path(trainer.ckpt_path).stat().st_mtime_ns
        restore_loader_position(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        self._save_last_if_behind(trainer)  # Lightning skips it if the loss has not improved

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._settle(trainer)
        self._failure = None
        self._save_last_if_behind(trainer)
        self._write_nemo_at_end(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the archive of a run with nothing left to train, which may have ended before it was written."""
        if not self._trains and trainer.ckpt_path is not None:
            self._write_nemo_at_end(trainer, pl_module, Path(trainer.ckpt_path))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        super().on_exception(trainer, pl_module, exception)
        if isinstance(exception, SIGTERMException) and self.save_on_sigterm:  # raised between two steps
            self._save_last_if_behind(trainer)
            self._settle(trainer)
        elif hasattr(self, "files"):  # set up
            self.files.settle()  # without communication: other ranks may be gone

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        keep_epoch_unfinished(trainer, checkpoint)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        # A checkpoint from elsewhere must not decide what this run deletes: only files in the run's folder are its own.
        self.last_model_path = self.last_model_path if self._is_own(self.last_model_path) else ""
        kept = {path: score for path, score in self.best_k_models.items() if self._is_own(path)}
        if len(kept) != len(self.best_k_models) or self.kth_best_model_path not in (*kept, ""):
            # deleted since, or the run was killed between two files
            self._rank_again(kept)

    def _is_own(self, path: Any) -> bool:
        """Return whether this is an existing checkpoint inside the run's folder."""
        path = Path(str(path)).resolve()
        own_folder = path.is_relative_to(Path(self.dirpath or "").resolve())
        return own_folder and path.suffix == self.FILE_EXTENSION and path.is_file()

    def format_checkpoint_name(
        self, metrics: dict[str, Tensor], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """Leave out metrics without a value, for which Lightning would write a misleading 0."""
        given = {name for name, value in metrics.items() if not math.isnan(float(value))}
        filename = without_missing(filename or self.filename or "{step}", given, self.auto_insert_metric_name)
        return super().format_checkpoint_name(metrics, filename, ver, prefix)

    def file_exists(self, filepath: Any, trainer: Trainer) -> bool:
        """Return whether a name is taken, so that a new version of it is needed.

        Files that a killed run wrote after the resumed checkpoint are overwritten: this run repeats those steps.
        """
        there = False
        if trainer.is_global_zero and Path(filepath).exists():
            lost = (
                self._resumed_from_time is not None
                and str(filepath) not in (*self.best_k_models, self.last_model_path)
                and Path(filepath).stat().st_mtime_ns > self._resumed_from_time
            )
            there = not lost
        return trainer.strategy.reduce_boolean_decision(there, all=False)

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor is None or self.monitor in monitor_candidates:
            with self._undone_on_failure(trainer):
                super()._save_topk_checkpoint(trainer, monitor_candidates)
        elif sum(trainer.num_val_batches):  # else a warning at the start said so
            _log.warning("there is no %s yet, so no best checkpoint at step %d", self.monitor, trainer.global_step)

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        with self._undone_on_failure(trainer):
            super()._save_last_checkpoint(trainer, monitor_candidates)

    def _save_last_if_behind(self, trainer: Trainer) -> None:
        if self.save_last and not skips_saving(self, trainer):
            self._save_last_checkpoint(trainer, monitored_values(self, trainer))

    @contextlib.contextmanager
    def _undone_on_failure(self, trainer: Trainer) -> Iterator[None]:
        """Restore the bookkeeping if writing in the block fails, so that the next checkpoint retries."""
        self._settle(trainer)  # what was written in the background
        self._bookkeeping = {name: getattr(self, name) for name in _BOOKKEEPING_FIELDS}
        self._bookkeeping["best_k_models"] = dict(self.best_k_models)
        yield
        if not self.files.background:
            self._settle(trainer)

    def _settle(self, trainer: Trainer) -> None:
        """Wait for pending writes; if rank 0 failed, restore the bookkeeping on every rank."""
        failure = trainer.strategy.broadcast(self.files.settle() if trainer.is_global_zero else None)
        if failure is None:
            return
        self._failure = failure
        for name, value in self._bookkeeping.items():
            setattr(self, name, value)
        newest = self.last_model_path or "none"
        if self.settings.on_write_error == "stop":
            raise CheckpointError(f"a checkpoint could not be written: {failure}; the newest is {newest}")
        _log.error("a checkpoint could not be written: %s; training continues, the newest is %s", failure, newest)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        if self.settings.always_save_nemo and trainer.lightning_module is not None:
            self._write_nemo(trainer, trainer.lightning_module)
        written = self._last_checkpoint_saved
        if written and self._last_global_step_saved == trainer.global_step:  # best and last of one step are equal
            if trainer.is_global_zero:
                self.files.give_second_name(Path(written), Path(filepath))
            trainer.strategy.barrier()
            self._last_checkpoint_saved = filepath
        else:
            super()._save_checkpoint(trainer, filepath)

    def _should_remove_checkpoint(self, trainer: Trainer, previous: str, current: str) -> bool:
        # Lightning keeps the checkpoint that a run resumed from, but there should be one `-last`.
        if LAST in Path(previous).stem and LAST in Path(current).stem and previous != current:
            return Path(previous).parent == Path(current).parent
        return super()._should_remove_checkpoint(trainer, previous, current)

    def _write_nemo(self, trainer: Trainer, model: Any, source: Path | None = None) -> None:
        """Write the archive unless it is up to date: with the weights of this step, from the model or a checkpoint, or,
        with `save_best_model`, of the best one."""
        now = (trainer.global_step, self.best_model_path)
        decisive = 1 if self.settings.save_best_model else 0
        if self._nemo_of is not None and self._nemo_of[decisive] == now[decisive]:
            return
        if source is None:
            weights = trainer.strategy.lightning_module_state_dict()  # on all ranks: each may have a shard
            if trainer.is_global_zero:
                self.files.write_beside(write_nemo, SavedModel(model.cfg, self.files.stable(weights)), self.nemo_path)
        elif trainer.is_global_zero:
            self.files.write_beside(_write_nemo_of, source, model.cfg, self.nemo_path)
        self._nemo_of = now

    def _write_nemo_at_end(self, trainer: Trainer, model: LightningModule, source: Path | None = None) -> None:
        if self.settings.save_nemo_on_train_end:
            if self.settings.save_best_model and Path(self.best_model_path).is_file():
                source = Path(self.best_model_path)
            with self._undone_on_failure(trainer):
                self._write_nemo(trainer, model, trainer.strategy.broadcast(source))
        self._settle(trainer)
        if self._failure is not None:
            raise CheckpointError(f"the end of the run could not be saved: {self._failure}")

    def _rank_again(self, kept: dict[str, Tensor]) -> None:
        ranked = sorted(kept, key=lambda path: float(kept[path]), reverse=self.mode == "max")
        self.best_k_models = kept
        self.best_model_path = ranked[0] if ranked else ""
        self.best_model_score = kept[ranked[0]] if ranked else None
        self.kth_best_model_path = ranked[-1] if ranked else ""
        if ranked:
            self.kth_value = kept[ranked[-1]]


def without_missing(filename: str, given: Collection[str], labelled: bool) -> str:
    """Return a template of file names without the fields that have no value; add the step if no counter is left.

    With `labelled`, Lightning writes the name of a field before its value.
    """
    fields = re.findall(r"\{(.*?)[:}]", filename)
    missing = [name for name in fields if name not in given]
    keeps_a_count = {"step", "epoch"} & set(fields)
    for name in missing:
        field = rf"(?:\w+=)?\{{{re.escape(name)}(?::[^}}]*)?\}}"  # with a label of the user
        if keeps_a_count:
            filename = re.sub(rf"{field}[-_]|[-_]{field}|{field}", "", filename, count=1)
        else:
            filename = re.sub(field, "{step}" if labelled else "step={step}", filename, count=1)
            keeps_a_count = {"step"}
    return filename


def _write_nemo_of(checkpoint: Path, config: DictConfig, path: Path) -> None:
    write_nemo(SavedModel(config, load_lightning_checkpoint(checkpoint)["state_dict"]), path)
