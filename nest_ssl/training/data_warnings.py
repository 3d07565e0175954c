"""What is odd about the data of a run, told before its first step; the checks themselves are in `nest_ssl/data`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from nest_ssl.data.bandwidth import estimate_narrow_band
from nest_ssl.data.manifest import manifests_in
from nest_ssl.data.overlap import find_overlap, without_overlap

_FILES = 16  # read before the first step, some milliseconds each


def check_bandwidth(cfg: DictConfig, trainer: Trainer, model: LightningModule) -> Iterator[str]:
    """Warn of audio whose upper frequencies are empty, such as telephone speech for a model of 16 kHz."""
    if not trainer.is_global_zero or OmegaConf.select(cfg, "model.train_ds.is_tarred"):
        return
    manifests = list(manifests_in(getattr(model.train_dataloader(), "dataset", None)))
    rate = OmegaConf.select(cfg, "model.sample_rate") or 16000
    found = estimate_narrow_band(manifests, int(rate), _FILES) if manifests else None
    if found is not None and found.lines > 1:
        yield (
            f"narrow band, an estimate from {found.measured} training files: {found}; "
            "nest-ssl data check with --min-bandwidth names all of them"
        )


def check_overlap(cfg: DictConfig, trainer: Trainer, model: LightningModule) -> Iterator[str]:
    """Warn of validation utterances that are trained on: their loss measures memory."""
    if not trainer.is_global_zero:
        return
    training = list(manifests_in(getattr(model.train_dataloader(), "dataset", None)))
    loaders: Any = model.val_dataloader()
    for loader in loaders:
        validation = list(manifests_in(loader.dataset))
        overlap = find_overlap(training, validation) if training and validation else None
        if overlap is not None:
            files = ([file for manifest in some for file in manifest.files] for some in (training, validation))
            yield f"{overlap}: val_loss will be too low; {without_overlap(*files)} writes manifests without them"
