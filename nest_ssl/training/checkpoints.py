"""Writing checkpoints: the best, the last and `.nemo` archives, each of which appears whole or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from nest_ssl.checkpoint import atomic_write, load_lightning_checkpoint, save_nemo
from nest_ssl.checkpoint.atomic import open_streaming
from nest_ssl.training.settings import CheckpointSettings

_log = logging.getLogger(__name__)
_LAST = "-last"


class SafeCheckpointIO(TorchCheckpointIO):
    """Lightning's file access: written beside the target and moved there, read without running what it brings."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        with atomic_write(path) as temporary, open_streaming(temporary) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: Any, map_location: Callable | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_lightning_checkpoint(Path(path))


class RunCheckpoint(ModelCheckpoint):
    """Lightning's checkpoints with NeMo's habits: `<filename>-last.ckpt` after every validation and at the end of the
    run, and `<name>.nemo` beside it."""

    def __init__(self, settings: CheckpointSettings, folder: Path, name: str, save_on_sigterm: bool) -> None:
        filename = settings.filename or f"{name}--{{{settings.monitor}:.4f}}-{{epoch}}"
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
            train_time_interval=settings.train_time_interval,
            every_n_epochs=settings.every_n_epochs,
            save_on_train_epoch_end=settings.save_on_train_epoch_end,
        )
        self.CHECKPOINT_NAME_LAST = filename + _LAST
        self.settings = settings
        self.save_on_sigterm = save_on_sigterm
        self.nemo_path = Path(self.dirpath or folder) / f"{settings.prefix or name}{settings.postfix}"
        self._nemo_of: tuple[int, str] | None = None  # step and best checkpoint that the archive was written at

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._last_global_step_saved = trainer.global_step  # nothing new to save before the first step
        self._last_checkpoint_saved = ""
        if trainer.ckpt_path is not None and Path(trainer.ckpt_path).parent == Path(self.dirpath or ""):
            self.last_model_path = str(trainer.ckpt_path)  # the next `-last` takes its place
        if self.nemo_path.exists():
            self._nemo_of = (trainer.global_step, self.best_model_path)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        self._save_last_if_behind(trainer)  # Lightning leaves it out when the loss has not improved

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save_last_if_behind(trainer)
        if self.settings.save_nemo_on_train_end:
            self._write_nemo_at_end(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        super().on_exception(trainer, pl_module, exception)
        if isinstance(exception, SIGTERMException) and self.save_on_sigterm:  # raised between two steps
            self._save_last_if_behind(trainer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        kept = {path: score for path, score in self.best_k_models.items() if Path(path).exists()}
        if len(kept) != len(self.best_k_models):  # deleted since, or the run was killed between two files
            self._rank_again(kept)

    def format_checkpoint_name(self, metrics: dict[str, Tensor], *args: Any, **kwargs: Any) -> str:
        if self.monitor is not None and self.monitor not in metrics:  # Lightning would write 0, a number that lies
            metrics = {**metrics, self.monitor: torch.tensor(float("nan"))}
        return super().format_checkpoint_name(metrics, *args, **kwargs)

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor is None or self.monitor in monitor_candidates:
            super()._save_topk_checkpoint(trainer, monitor_candidates)
        else:
            _log.warning("there is no %s yet, so no best checkpoint at step %d", self.monitor, trainer.global_step)

    def _save_last_if_behind(self, trainer: Trainer) -> None:
        if self.save_last and not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        with self._writing_nemo(trainer):
            self._write_or_link(trainer, filepath)

    @contextlib.contextmanager
    def _writing_nemo(self, trainer: Trainer) -> Iterator[None]:
        """Write the archive, if due, while the block writes a checkpoint: each waits for the disk half of the time."""
        if not self.settings.always_save_nemo or trainer.lightning_module is None:
            yield
            return
        with ThreadPoolExecutor(max_workers=1) as beside:
            archive = beside.submit(self._write_nemo, trainer, trainer.lightning_module)
            yield
        archive.result()

    def _write_or_link(self, trainer: Trainer, filepath: str) -> None:
        written = self._last_checkpoint_saved
        same_step = self._last_global_step_saved == trainer.global_step
        if trainer.strategy.broadcast(same_step and Path(written).is_file()):
            # Best and last of one step hold the same state: a second name costs nothing.
            if trainer.is_global_zero:
                _link(Path(written), Path(filepath))
            trainer.strategy.barrier()
            self._last_checkpoint_saved = filepath
        else:
            super()._save_checkpoint(trainer, filepath)

    def _should_remove_checkpoint(self, trainer: Trainer, previous: str, current: str) -> bool:
        # Lightning keeps the checkpoint that a run resumed from; of `-last` there is to be one.
        if _LAST in Path(previous).stem and _LAST in Path(current).stem and previous != current:
            return Path(previous).parent == Path(current).parent
        return super()._should_remove_checkpoint(trainer, previous, current)

    def _write_nemo(self, trainer: Trainer, model: Any) -> None:
        """Keep the archive at the weights of this step or, with `save_best_model`, of the best one."""
        now = (trainer.global_step, self.best_model_path)
        decisive = 1 if self.settings.save_best_model else 0
        if self._nemo_of is not None and self._nemo_of[decisive] == now[decisive]:
            return
        if trainer.is_global_zero:
            save_nemo(model, self.nemo_path)
        self._nemo_of = now

    def _write_nemo_at_end(self, trainer: Trainer, model: LightningModule) -> None:
        if self.settings.save_best_model and Path(self.best_model_path).is_file():
            model.load_state_dict(load_lightning_checkpoint(Path(self.best_model_path))["state_dict"])
        self._write_nemo(trainer, model)

    def _rank_again(self, kept: dict[str, Tensor]) -> None:
        ranked = sorted(kept, key=lambda path: float(kept[path]), reverse=self.mode == "max")
        self.best_k_models = kept
        self.best_model_path = ranked[0] if ranked else ""
        self.best_model_score = kept[ranked[0]] if ranked else None
        self.kth_best_model_path = ranked[-1] if ranked else ""
        if ranked:
            self.kth_value = kept[ranked[-1]]


def newest_last_checkpoint(folder: Path) -> Path | None:
    """The `-last.ckpt` to continue from; a run that was killed while replacing it leaves two."""
    found = sorted(folder.glob("*last.ckpt"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def _link(written: Path, name: Path) -> None:
    """Give a file a second name, by a copy where the file system cannot link; either appears whole."""
    if name.exists() and name.samefile(written):
        return
    with atomic_write(name) as temporary:
        try:
            os.link(written, temporary)
        except OSError:
            shutil.copyfile(written, temporary)
