"""The methods of a model that read and write files, under NeMo's names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig
from torch import nn

from nest_ssl.checkpoint.lightning import load_lightning_model
from nest_ssl.checkpoint.restore import (
    initialise_from_pretrained,
    pretrained_file,
    restore_config,
    restore_model,
    save_model,
)
from nest_ssl.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class ModelFiles(nn.Module):
    """A mixin for models: `save_to`, `restore_from`, `from_pretrained`, and initialisation from another model."""

    cfg: DictConfig  # the `model` node that it was built from

    def maybe_init_from_pretrained_checkpoint(self, cfg: DictConfig) -> None:
        """Load the weights that an `init_from_*` key of the whole configuration names, if any."""
        initialise_from_pretrained(self, cfg)

    @rank_zero_only
    def save_to(self, save_path: Path | str) -> None:
        """Write configuration and weights to a `.nemo` archive, which NeMo restores too, or a `.safetensors` file."""
        save_model(self, save_path)

    @classmethod
    def restore_from(
        cls,
        restore_path: Path | str,
        override_config_path: Path | str | DictConfig | None = None,
        map_location: torch.device | str | None = None,
        strict: bool = True,
        return_config: bool = False,
        trainer: Trainer | None = None,
    ) -> Any:
        """Load a model from a `.nemo`, `.safetensors` or `.ckpt` file of nest_ssl or NeMo, or only its configuration.

        `override_config_path` replaces the whole configuration. The model is in training mode, on `map_location`, by
        default a GPU if there is one; data loaders are created when training starts.
        """
        if return_config:
            return restore_config(restore_path, override_config_path)
        return restore_model(partial(cls, trainer=trainer), restore_path, override_config_path, map_location, strict)

    @classmethod
    def load_from_checkpoint(  # Lightning's takes URLs, open files and any keyword
        cls,
        checkpoint_path: Path | str,
        map_location: torch.device | str | None = None,
        hparams_file: None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        *,
        cfg: Path | str | DictConfig | None = None,
        trainer: Trainer | None = None,
    ) -> Any:
        """Load a model from a Lightning checkpoint with any suffix; `cfg` replaces its configuration.

        Lightning's own method would trust the file about the size of the model. Only tensors and plain values are
        read, so `weights_only=False` is an error, and so is `hparams_file`.
        """
        if weights_only is False:
            raise ConfigError("weights_only: False would run code from the file; leave it out")
        if hparams_file is not None:
            raise ConfigError("hparams_file: not read; give the whole configuration of the model as cfg")
        if not isinstance(checkpoint_path, Path | str):
            raise ConfigError(f"checkpoint_path: {type(checkpoint_path).__name__} is not the path of a file")
        build = partial(cls, trainer=trainer)
        return restore_model(build, checkpoint_path, cfg, map_location, strict is not False, load_lightning_model)

    @classmethod
    def from_pretrained(
        cls,
        model_name: Path | str,
        *,
        override_config_path: Path | str | DictConfig | None = None,
        map_location: torch.device | str | None = None,
        strict: bool = True,
        return_config: bool = False,
        trainer: Trainer | None = None,
    ) -> Any:
        """Call `restore_from` on a local file; models are not downloaded by name."""
        path = pretrained_file(model_name)
        return cls.restore_from(path, override_config_path, map_location, strict, return_config, trainer)
