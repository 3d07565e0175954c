"""NEST: predict the tokens of clean speech from masked, noisy speech (arXiv 2408.13106)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader

from nest_ssl.data import AudioNoiseBatch, build_dataloader
from nest_ssl.data.lhotse.configured import seed_as_nemo_does
from nest_ssl.data.loading.resumable import ResumableLoader
from nest_ssl.data.problems import ProblemWarnings
from nest_ssl.data.sources import sources
from nest_ssl.errors import ConfigError
from nest_ssl.model import MaskedPrediction, fast
from nest_ssl.model.batch_norm_statistics import RunningStatistics
from nest_ssl.model.build import MODEL_DEFAULTS, build_parts
from nest_ssl.model.masking import ConvFeatureMaksingWrapper
from nest_ssl.training.checkpointing.accumulation import gradients_of_all_processes, own_gradients, put_back
from nest_ssl.training.optim import (
    build_optimizer,
    build_scheduler,
    clip_or_drop,
    parameter_groups,
    steps_in_run,
    will_log,
    with_fused_kernel,
)

_log = logging.getLogger(__name__)


class EncDecDenoiseMaskedTokenPredModel(pl.LightningModule):
    """Clean speech -> features -> quantizer -> tokens; noisy speech -> features -> mask -> encoder -> decoder.

    The loss asks the decoder for the tokens of the masked frames. Everything here is wiring: the mathematics is in
    the parts, whose names are those of NeMo's checkpoints.
    """

    def __init__(self, cfg: DictConfig, trainer: pl.Trainer | None = None) -> None:
        super().__init__()
        self.cfg = cfg
        self.settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
        self.save_hyperparameters({"cfg": self.settings}, logger=False)
        if trainer is not None:
            self.trainer = trainer
        seed_as_nemo_does(self.settings)
        parts = build_parts(self.settings)
        # In NeMo's order: the norm that clipping sums up and the optimiser's state both go by it.
        self.preprocessor = parts.preprocessor
        self.encoder = parts.encoder
        self.loss = parts.loss
        self.quantizer = parts.quantizer
        self.mask_processor = parts.mask_processor
        self.decoder = parts.decoder
        self.pre_encoder: ConvFeatureMaksingWrapper | None = None
        if self.settings.get("mask_position") == "post_conv":
            self.pre_encoder = ConvFeatureMaksingWrapper(self.encoder.pre_encode, self.mask_processor)
            self.pre_encoder.pre_encode.requires_grad_(False)
            self.encoder.pre_encode = self.pre_encoder
        self.parts = parts
        self.fast = self.settings.get("numerics") == "fast" and self._can_be_fast()
        if self.settings.get("compile"):
            for layer in self.encoder.layers:  # one by one: they are alike, and what was compiled for one serves all
                layer.compile(dynamic=True)
        self.batches_without_masks = 0
        self.skipped_audio = 0
        self.prediction: MaskedPrediction | None = None  # of the batch at hand, for callbacks
        self.shown_loss: Tensor | None = None  # of the latest batch: `train_loss`, where one was logged
        self.gradient_norm: Tensor | None = None  # of the latest step, before clipping
        self.step_left_out = False  # the latest one, because its loss or gradient was not finite
        self._losses: list[Tensor] = []  # of the batches since the last update
        self._statistics: RunningStatistics | None = None
        self._accumulated: dict[str, Tensor] = {}  # gradients of a checkpoint, until training starts
        self._problem_warnings = ProblemWarnings()
        self._train_loader: DataLoader | None = None
        self._validation_loaders: list[DataLoader] = []
        self._validation_names: list[str] = []
        self._validation_losses: list[list[Tensor]] = []

    def forward(
        self,
        input_signal: Tensor | None = None,
        input_signal_length: Tensor | None = None,
        processed_signal: Tensor | None = None,
        processed_signal_length: Tensor | None = None,
        noise_signal: Tensor | None = None,
        noise_signal_length: Tensor | None = None,
        processed_noise_signal: Tensor | None = None,
        processed_noise_signal_length: Tensor | None = None,
        noisy_input_signal: Tensor | None = None,
        noisy_input_signal_length: Tensor | None = None,
        processed_noisy_input_signal: Tensor | None = None,
        processed_noisy_input_signal_length: Tensor | None = None,
        apply_mask: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Clean and noisy speech, each as samples (B, S) or as features (B, D, T), with their lengths (B).

        Returns log-probabilities (B, U, V, K), their lengths (B), the mask (B, D, T) and the tokens (B, U, K). The
        noise by itself is accepted, as in NeMo, and not used.
        """
        clean, clean_length = self._features(
            "input_signal", input_signal, input_signal_length, processed_signal, processed_signal_length
        )
        noisy, noisy_length = self._features(
            "noisy_input_signal",
            noisy_input_signal,
            noisy_input_signal_length,
            processed_noisy_input_signal,
            processed_noisy_input_signal_length,
        )
        if self.pre_encoder is not None:
            tokens = self._tokens_after_subsampling(clean, clean_length)
            self.pre_encoder.apply_mask = apply_mask
            encoded, encoded_length = self.encoder(audio_signal=noisy, length=noisy_length)
            masks = self.pre_encoder.current_mask
        else:
            tokens = self.quantizer(input_signal=clean)
            if apply_mask:
                noisy, masks = self.mask_processor(input_feats=noisy, input_lengths=noisy_length)
            else:
                masks = torch.zeros_like(noisy)
            encoded, encoded_length = self.encoder(audio_signal=noisy, length=noisy_length)
        return self.decoder(encoder_output=encoded), encoded_length, masks, tokens

    def _features(
        self, name: str, signal: Tensor | None, length: Tensor | None, features: Tensor | None, frames: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Features as given, or computed; exactly one of the two pairs must be there."""
        if (signal is not None and length is not None) == (features is not None and frames is not None):
            processed = f"processed_{name.removeprefix('input_')}"
            raise ValueError(f"give either {name} and {name}_length or {processed} and {processed}_length")
        if features is not None and frames is not None:
            return features, frames
        return self.preprocessor(input_signal=signal, length=length)

    def _tokens_after_subsampling(self, clean: Tensor, length: Tensor) -> Tensor:
        assert self.pre_encoder is not None
        with torch.no_grad():
            frames, _ = self.pre_encoder.pre_encode(x=clean.transpose(1, 2), lengths=length)  # (B, D, T) -> (B, T, D)
        return self.quantizer(input_signal=frames.transpose(1, 2))  # (B, U, D) -> (B, D, U)

    def reasons_for_exact(self) -> list[str]:
        """What of this model `numerics: fast` cannot do."""
        position = self.settings.get("mask_position", MODEL_DEFAULTS["mask_position"])
        return fast.reasons_for_exact(self.parts, position)

    def _can_be_fast(self) -> bool:
        reasons = self.reasons_for_exact()
        if reasons:
            _log.warning("model.numerics: fast cannot do %s; training with exact", ", ".join(reasons))
        return not reasons

    def predict_masked(self, batch: AudioNoiseBatch) -> MaskedPrediction:
        """Mask a batch and predict what is hidden: the loss, and what it was made of."""
        if self.fast:
            over_padding = self.settings.get("batch_norm_over_padding", MODEL_DEFAULTS["batch_norm_over_padding"])
            return fast.predict_masked(self.parts, batch, over_padding)
        log_probs, encoded_length, masks, tokens = self.forward(
            input_signal=batch.audio,
            input_signal_length=batch.audio_len,
            noise_signal=batch.noise,
            noise_signal_length=batch.noise_len,
            noisy_input_signal=batch.noisy_audio,
            noisy_input_signal_length=batch.noisy_audio_len,
            apply_mask=True,
        )
        loss = self.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=encoded_length)
        scored = self.loss.scored_frames(masks, log_probs.shape[1])
        if log_probs.dim() == 3:  # squeezed
            log_probs, tokens = log_probs.unsqueeze(-1), tokens.unsqueeze(-1)
        frames = scored.shape[1]
        return MaskedPrediction(
            loss=loss,
            masked=bool(scored.any()),
            mask=masks[:, 0] > 0,
            scored=scored,
            lengths=encoded_length,
            outputs=log_probs.detach()[:, :frames],
            tokens=nn.functional.pad(tokens, (0, 0, 0, frames - tokens.shape[1])),
        )

    def training_step(self, batch: AudioNoiseBatch, batch_idx: int) -> Tensor:
        self.step_left_out = False
        if self._statistics is not None and not self._losses:
            self._statistics.keep()
        self.prediction = self.predict_masked(batch)
        loss, masked = self.prediction.loss, self.prediction.masked
        self._losses.append(loss.detach())
        self._count(batch, masked)
        metrics = {"learning_rate": self.trainer.optimizers[0].param_groups[0]["lr"]}
        shown = loss.detach() if masked else None
        if self.trainer.world_size > 1:  # processes wait for each other only where somebody will look
            shown = self._mean_over_processes([] if shown is None else [shown]) if will_log(self.trainer) else None
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
        """Keep account of what was left out; who watches the run reports it."""
        self._problem_warnings.warn(batch.problems)
        self.skipped_audio += batch.skipped
        self.batches_without_masks += not masked

    def on_before_backward(self, loss: Tensor) -> None:
        self.prediction = None  # callbacks had their look; backward needs the memory

    def on_validation_batch_end(self, *_: Any) -> None:
        self.prediction = None  # and so does the next batch

    def on_validation_epoch_start(self) -> None:
        self._validation_losses = [[] for _ in self._validation_loaders]
        if self._device_mesh is not None and self._statistics is not None:
            self._statistics.share()  # DDP does so by itself; else a resumed run would measure another loss

    @property
    def main_validation_set(self) -> int:
        """The one of several validation sets whose numbers are those of the run."""
        return self.settings["validation_ds"].get("val_dl_idx", 0)

    def on_validation_epoch_end(self) -> None:
        """`val_loss` is the mean over the batches of the set that `val_dl_idx` names, by default the first."""
        for index, losses in enumerate(self._validation_losses):
            mean = self._mean_over_processes(losses)
            if mean is None:
                _log.warning("validation set %d had no masked frame, so there is no loss of it", index)
                continue
            if index == self.main_validation_set:
                self.log("val_loss", mean, prog_bar=True)
            if len(self._validation_losses) > 1:
                self.log(f"{self._validation_names[index]}val_loss", mean)

    def _mean_over_processes(self, losses: list[Tensor]) -> Tensor | None:
        """The mean of what all processes found; every one takes part, also one that found nothing."""
        total = torch.stack(losses).sum() if losses else torch.zeros((), device=self.device)
        together = torch.stack((total, total.new_tensor(len(losses))))
        total, count = self.trainer.strategy.reduce(together, reduce_op="sum")
        return total / count if count else None

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Lightning's hook between backward and the optimiser's step, which is left out if gradients are not finite.

        A gradient scaler leaves it out by itself, and expects to now and then, while it looks for its scale.
        """
        losses, self._losses = self._losses, []
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            # Lightning leaves that to a fused kernel, but norm and limit are of the true gradients
            scaler.unscale_(optimizer)
        by_norm = gradient_clip_algorithm in (None, "norm")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.gradient_norm, finite = clip_or_drop(
            parameters, (gradient_clip_val or None) if by_norm else None, drop=scaler is None
        )
        self.step_left_out = not finite and (scaler is None or _is_no_overflow(losses, scaler))
        # Gradients are those of all processes, which must agree on the step; statistics are each one's own.
        if self._statistics is not None and (self.step_left_out or not self._statistics.finite()):
            self._statistics.put_back()
            self.step_left_out = True
        if finite and not by_norm and gradient_clip_val:
            self.trainer.precision_plugin.clip_grad_by_value(optimizer, gradient_clip_val)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint between two updates holds what every process has of the next one so far."""
        if self._trainer is not None and self.trainer.fit_loop.epoch_loop._should_accumulate():
            checkpoint["accumulated_gradients"] = gradients_of_all_processes(self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        from nest_ssl.checkpoint.weights import refuse_nonfinite_optimizer, refuse_unusable_weights

        path = (self._trainer.ckpt_path if self._trainer is not None else None) or "the checkpoint"
        refuse_unusable_weights(checkpoint.get("state_dict", {}), self.state_dict(), path)
        refuse_nonfinite_optimizer(checkpoint.get("optimizer_states"), path)
        processes = checkpoint.get("accumulated_gradients")
        self._accumulated = own_gradients(processes, self) if processes else {}

    def on_train_start(self) -> None:
        """Tell the loader what an epoch is: its place in one is part of every checkpoint."""
        loader = self.trainer.train_dataloader
        if isinstance(loader, ResumableLoader) and math.isfinite(self.trainer.num_training_batches):
            loader.batches_per_epoch = int(self.trainer.num_training_batches)
        if isinstance(loader, ResumableLoader) and loader.behind is not None:
            count: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current  # by other processes
            count.ready = count.started = count.processed = count.completed = loader.behind
        self._statistics = RunningStatistics(self)
        put_back(self._accumulated, self)
        self._accumulated = {}

    def configure_model(self) -> None:
        """Lightning's hook: divide the weights among the processes where the strategy asks for it (`fsdp`)."""
        if self._device_mesh is not None:
            from nest_ssl.training.fsdp import shard  # needs checkpoint, which needs this module

            shard(self, self._device_mesh["data_parallel"])

    def setup(self, stage: str) -> None:
        """Lightning's hook, in every process once its rank is known: make the data loaders."""
        if stage == "fit":
            self.setup_training_data(self._dataset("train_ds"))
        if stage in ("fit", "validate") and sources(self.settings.get("validation_ds")):
            self.setup_validation_data(self._dataset("validation_ds"))

    def setup_training_data(self, config: Mapping[str, Any]) -> None:
        """Train on the data of this `train_ds` node."""
        self._train_loader = self._loader({"shuffle": True, **config}, "model.train_ds")

    def setup_validation_data(self, config: Mapping[str, Any]) -> None:
        """Validate on the data of this `validation_ds` node; a list of manifests makes as many sets."""
        manifests = config.get("manifest_filepath")
        several = manifests if isinstance(manifests, list) else [manifests]
        self._validation_names = [_metric_prefix(manifest) for manifest in several]
        self._validation_loaders = [
            self._loader({"shuffle": False, **config, "manifest_filepath": manifest}, "model.validation_ds")
            for manifest in several
        ]

    def _dataset(self, name: str) -> dict[str, Any]:
        config = self.settings.get(name)
        if not config:
            raise ConfigError(f"model.{name}: missing; give model.{name}.manifest_filepath=<manifest>")
        return config

    def _loader(self, config: dict[str, Any], key: str) -> DataLoader:
        if config.get("sample_rate") is None and "sample_rate" in self.settings:
            config["sample_rate"] = self.settings["sample_rate"]
        attached = self._trainer is not None
        return build_dataloader(
            config,
            key=key,
            global_rank=self.trainer.global_rank if attached else 0,
            world_size=self.trainer.world_size if attached else 1,
            numerics="fast" if self.fast else "exact",
        )

    def train_dataloader(self) -> DataLoader | None:
        return self._train_loader

    def val_dataloader(self) -> list[DataLoader]:
        return self._validation_loaders

    def configure_optimizers(self) -> Any:
        config = self.settings.get("optim")
        if not config:
            raise ConfigError("model.optim: missing; give at least model.optim.name and model.optim.lr")
        if self.fast and self._device_mesh is None:  # torch has few such kernels for weights in parts
            config = with_fused_kernel(config)
        optimizer = build_optimizer(parameter_groups(self, self.settings.get("optim_param_groups")), config)
        schedule = config.get("sched")
        scheduler = build_scheduler(
            optimizer, schedule, max_steps=steps_in_run(self.trainer, self._train_loader, schedule)
        )
        return optimizer if scheduler is None else {"optimizer": optimizer, "lr_scheduler": scheduler}

    def maybe_init_from_pretrained_checkpoint(self, cfg: DictConfig) -> None:
        """Start from weights that `init_from_nemo_model` or `init_from_ptl_ckpt` of the whole configuration names."""
        from nest_ssl.checkpoint import initialise_from_pretrained  # checkpoint knows models, not the other way round

        initialise_from_pretrained(self, cfg)

    @rank_zero_only
    def save_to(self, save_path: Path | str) -> None:
        """Write configuration and weights to a `.nemo` archive, which NeMo restores too, or a `.safetensors` file."""
        from nest_ssl.checkpoint import save_model

        save_model(self, save_path)

    @classmethod
    def restore_from(
        cls,
        restore_path: Path | str,
        override_config_path: Path | str | DictConfig | None = None,
        map_location: torch.device | str | None = None,
        strict: bool = True,
        return_config: bool = False,
        trainer: pl.Trainer | None = None,
    ) -> Any:
        """The model that we or NeMo saved in a `.nemo`, `.safetensors` or `.ckpt` file, or only its configuration.

        An override takes the place of the whole configuration. The model is in training mode, on the GPU if there is
        one and `map_location` says nothing else; data loaders are made when training starts.
        """
        from nest_ssl.checkpoint import restore_config, restore_model

        if return_config:
            return restore_config(restore_path, override_config_path)
        return restore_model(cls, restore_path, override_config_path, map_location, strict, trainer)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's takes URLs, open files and any keyword
        cls,
        checkpoint_path: Path | str,
        map_location: torch.device | str | None = None,
        hparams_file: None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        *,
        cfg: Path | str | DictConfig | None = None,
        trainer: pl.Trainer | None = None,
    ) -> Any:
        """`restore_from` of a Lightning checkpoint, whatever its name ends in; `cfg` takes the place of its settings.

        Lightning's own would believe the file about the size of the model. Nothing but tensors and plain values is
        ever read, so `weights_only=False` is an error, and so is a second file of settings.
        """
        from nest_ssl.checkpoint import load_lightning_model, restore_model

        if weights_only is False:
            raise ConfigError("weights_only: False would run code from the file; leave it out")
        if hparams_file is not None:
            raise ConfigError("hparams_file: not read; give the whole configuration of the model as cfg")
        if not isinstance(checkpoint_path, Path | str):
            raise ConfigError(f"checkpoint_path: {type(checkpoint_path).__name__} is not the path of a file")
        return restore_model(
            cls, checkpoint_path, cfg, map_location, strict is not False, trainer, read=load_lightning_model
        )

    @classmethod
    def from_pretrained(
        cls,
        model_name: Path | str,
        *,
        override_config_path: Path | str | DictConfig | None = None,
        map_location: torch.device | str | None = None,
        strict: bool = True,
        return_config: bool = False,
        trainer: pl.Trainer | None = None,
    ) -> Any:
        """`restore_from` of a local file; models are not downloaded by name."""
        from nest_ssl.checkpoint import pretrained_file

        path = pretrained_file(model_name)
        return cls.restore_from(path, override_config_path, map_location, strict, return_config, trainer)


def _is_no_overflow(losses: list[Tensor], scaler: Any) -> bool:
    """Whether it is not the scale that made these gradients infinite: below 1 it makes them smaller, not larger."""
    return not all(bool(loss.isfinite()) for loss in losses) or scaler.get_scale() < 1


def _metric_prefix(manifest: Any) -> str:
    """`data/dev-clean_manifest.json` -> `dev_clean_`: NeMo's prefix for the metrics of one of several sets."""
    name = Path(str(manifest)).stem.replace("-", "_").replace("manifest", "").replace("dataset", "")
    return name if name.endswith("_") else name + "_"
