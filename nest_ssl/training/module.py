"""NEST as a LightningModule: what a training and a validation step do around the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader

from nest_ssl import compat
from nest_ssl.checkpoint.model_files import ModelFiles
from nest_ssl.checkpoint.weights import refuse_nonfinite_optimizer, refuse_unusable_weights
from nest_ssl.data import AudioNoiseBatch
from nest_ssl.data.problems import ProblemWarnings
from nest_ssl.errors import ConfigError
from nest_ssl.model import MaskedPrediction
from nest_ssl.model.batch_norm_statistics import RunningStatistics
from nest_ssl.model.nest import Nest
from nest_ssl.training.checkpointing.within_epoch import (
    agree_on_position,
    gradients_of_all_ranks,
    own_gradients,
    put_back,
)
from nest_ssl.training.datamodule import NestDataModule, seed_for_lhotse
from nest_ssl.training.optim import (
    build_optimizer,
    build_scheduler,
    clip_or_drop,
    parameter_groups,
    with_fused_kernel,
)
from nest_ssl.training.run_length import steps_in_run, will_log

_log = logging.getLogger(__name__)


class EncDecDenoiseMaskedTokenPredModel(Nest, ModelFiles, pl.LightningModule):  # type: ignore[misc]
    """`Nest` as Lightning trains it: steps, metrics, clipping, optimizer, and what a checkpoint holds besides weights.

    Its data loaders are those of `data`, a LightningDataModule; its files are read and written by `ModelFiles`.
    """

    def __init__(self, cfg: DictConfig, trainer: pl.Trainer | None = None) -> None:
        settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
        seed_for_lhotse(settings)
        super().__init__(settings)
        self.cfg = cfg
        self.save_hyperparameters({"cfg": self.settings}, logger=False)
        if trainer is not None:
            self.trainer = trainer
        self.data = NestDataModule(self.settings, "fast" if self.fast else "exact")
        self.batches_without_masks = 0
        self.skipped_audio = 0
        self.prediction: MaskedPrediction | None = None  # of the current batch, for callbacks
        self.shown_loss: Tensor | None = None  # `train_loss` of the latest batch, if one was logged
        self.gradient_norm: Tensor | None = None  # of the latest step, before clipping
        self.step_skipped = False  # the latest step, because its loss or gradient was not finite
        self._losses: list[Tensor] = []  # of the batches since the last optimizer step
        self._statistics: RunningStatistics | None = None
        self._accumulated: dict[str, Tensor] = {}  # gradients from a checkpoint, until training starts
        self._problem_warnings = ProblemWarnings()
        self._validation_losses: list[list[Tensor]] = []

    def training_step(self, batch: AudioNoiseBatch, batch_idx: int) -> Tensor:
        self.step_skipped = False
        if self._statistics is not None and not self._losses:
            self._statistics.keep()
        self.prediction = self.predict_masked(batch)
        loss, masked = self.prediction.loss, self.prediction.masked
        self._losses.append(loss.detach())
        self._count(batch, masked)
        metrics = {"learning_rate": self.trainer.optimizers[0].param_groups[0]["lr"]}
        shown = loss.detach() if masked else None
        if self.trainer.world_size > 1:  # ranks wait for each other only if the step is logged
            shown = self._mean_over_ranks([] if shown is None else [shown]) if will_log(self.trainer) else None
        self.shown_loss = shown
        if shown is not None:
            metrics["train_loss"] = shown
        self.log_dict(metrics, on_step=True, prog_bar=True, batch_size=len(batch.audio))
        return loss

    def validation_step(self, batch: AudioNoiseBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.prediction = self.predict_masked(batch)
        self._count(batch, self.prediction.masked)
        if self.prediction.masked:
            self._validation_losses[dataloader_idx].append(self.prediction.loss)

    def _count(self, batch: AudioNoiseBatch, masked: bool) -> None:
        """Warn of problems with audio, and count what was skipped, for callbacks."""
        self._problem_warnings.warn(batch.problems)
        self.skipped_audio += batch.skipped
        self.batches_without_masks += not masked

    def on_before_backward(self, loss: Tensor) -> None:
        self.prediction = None  # callbacks have used it; backward needs the memory

    def on_validation_batch_end(self, *_: Any) -> None:
        self.prediction = None  # the next batch needs the memory

    def on_validation_epoch_start(self) -> None:
        self._validation_losses = [[] for _ in self.data.validation_loaders]
        if compat.device_mesh(self) is not None and self._statistics is not None:
            self._statistics.share()  # as DDP does; else a resumed run would measure another loss

    @property
    def main_validation_set(self) -> int:
        """The index of the validation set that `val_loss` belongs to."""
        return self.settings["validation_ds"].get("val_dl_idx", 0)

    def on_validation_epoch_end(self) -> None:
        """Log `val_loss`, the mean over the batches of the set that `val_dl_idx` names, by default the first."""
        for index, losses in enumerate(self._validation_losses):
            mean = self._mean_over_ranks(losses)
            if mean is None:
                _log.warning("validation set %d had no masked frame, so it has no loss", index)
                continue
            if index == self.main_validation_set:
                self.log("val_loss", mean, prog_bar=True)
            if len(self._validation_losses) > 1:
                self.log(f"{self.data.validation_names[index]}val_loss", mean)

    def _mean_over_ranks(self, losses: list[Tensor]) -> Tensor | None:
        """Return the mean over all ranks, None if there are no losses; every rank must call it."""
        total = torch.stack(losses).sum() if losses else torch.zeros((), device=self.device)
        together = torch.stack((total, total.new_tensor(len(losses))))
        total, count = self.trainer.strategy.reduce(together, reduce_op="sum")
        return total / count if count else None

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Lightning's hook between backward and the optimizer step: clip, or skip the step if gradients are not finite.

        A gradient scaler skips such steps itself; some are expected while it searches for its scale.
        """
        losses, self._losses = self._losses, []
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and compat.unscales_by_itself(optimizer):
            # Lightning leaves this to the fused kernel, but clipping needs the true gradients
            scaler.unscale_(optimizer)
        by_norm = gradient_clip_algorithm in (None, "norm")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.gradient_norm, finite = clip_or_drop(
            parameters, (gradient_clip_val or None) if by_norm else None, drop=scaler is None
        )
        self.step_skipped = not finite and (scaler is None or _is_no_overflow(losses, scaler))
        # Gradients are equal on all ranks, so all agree on the step; each rank has its own statistics.
        if self._statistics is not None and (self.step_skipped or not self._statistics.finite()):
            self._statistics.put_back()
            self.step_skipped = True
        if finite and not by_norm and gradient_clip_val:
            self.trainer.precision_plugin.clip_grad_by_value(optimizer, gradient_clip_val)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the gradients accumulated so far to a checkpoint between two optimizer steps."""
        if compat.attached_trainer(self) is not None and compat.is_accumulating(self.trainer):
            checkpoint["accumulated_gradients"] = gradients_of_all_ranks(self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trainer = compat.attached_trainer(self)
        path = (trainer.ckpt_path if trainer is not None else None) or "the checkpoint"
        refuse_unusable_weights(checkpoint.get("state_dict", {}), self.state_dict(), path)
        refuse_nonfinite_optimizer(checkpoint.get("optimizer_states"), path)
        processes = checkpoint.get("accumulated_gradients")
        self._accumulated = own_gradients(processes, self) if processes else {}

    def on_train_start(self) -> None:
        agree_on_position(self.trainer)
        self._statistics = RunningStatistics(self)
        if self._accumulated:
            put_back(self._accumulated, self)
            self._accumulated = {}

    def configure_model(self) -> None:
        """Lightning's hook: shard the weights over the ranks if the strategy is `fsdp`."""
        mesh = compat.device_mesh(self)
        if mesh is not None:
            from nest_ssl.training.fsdp import shard

            shard(self, mesh["data_parallel"])

    def setup(self, stage: str) -> None:
        """Lightning's hook: make the data loaders."""
        self._attached_data().setup(stage)

    def _attached_data(self) -> NestDataModule:
        """Return the data module, after setting its trainer: rank and world size decide what it loads."""
        self.data.trainer = compat.attached_trainer(self)
        return self.data

    def setup_training_data(self, config: Mapping[str, Any]) -> None:
        """Train on the data of this `train_ds` node (NeMo's method)."""
        self._attached_data().setup_training_data(config)

    def setup_validation_data(self, config: Mapping[str, Any]) -> None:
        """Validate on the data of this `validation_ds` node (NeMo's method)."""
        self._attached_data().setup_validation_data(config)

    def train_dataloader(self) -> DataLoader | None:
        return self.data.train_dataloader()

    def val_dataloader(self) -> list[DataLoader]:
        return self.data.val_dataloader()

    def configure_optimizers(self) -> Any:
        config = self.settings.get("optim")
        if not config:
            raise ConfigError("model.optim: missing; give at least model.optim.name and model.optim.lr")
        if self.fast and compat.device_mesh(self) is None:  # torch has few such kernels for sharded weights
            config = with_fused_kernel(config)
        optimizer = build_optimizer(parameter_groups(self, self.settings.get("optim_param_groups")), config)
        schedule = config.get("sched")
        scheduler = build_scheduler(
            optimizer, schedule, max_steps=steps_in_run(self.trainer, self.data.train_loader, schedule)
        )
        return optimizer if scheduler is None else {"optimizer": optimizer, "lr_scheduler": scheduler}


def _is_no_overflow(losses: list[Tensor], scaler: Any) -> bool:
    """Return whether infinite gradients have another cause than the loss scale: the loss itself, or a scale below 1."""
    return not all(bool(loss.isfinite()) for loss in losses) or scaler.get_scale() < 1
