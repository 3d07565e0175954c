"""What is odd about the data of a run, told before its first step; the checks themselves are in `nest_ssl/data`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from omegaconf import DictConfig

from nest_ssl.data.manifest import manifests_in
from nest_ssl.data.overlap import find_overlap, without_overlap


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
