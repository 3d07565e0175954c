"""What is odd about the data of a run, told before its first step; the checks themselves are in `nest_ssl/data`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

from nest_ssl.data.inspection.bandwidth import estimate_narrow_band
from nest_ssl.data.inspection.overlap import find_overlap, without_overlap
from nest_ssl.data.manifest import Manifest, load_manifest, manifests_in
from nest_ssl.data.sources import sources
from nest_ssl.data.tarred.shards import expand_paths
from nest_ssl.errors import ManifestError

_FILES = 16  # read before the first step, some milliseconds each


def check_bandwidth(cfg: DictConfig, trainer: Trainer, model: LightningModule) -> Iterator[str]:
    """Warn of audio whose upper frequencies are empty, such as telephone speech for a model of 16 kHz."""
    if not trainer.is_global_zero or OmegaConf.select(cfg, "model.train_ds.is_tarred"):
        return
    manifests = _manifests(cfg, "train_ds", model.train_dataloader())
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
    training = _manifests(cfg, "train_ds", model.train_dataloader())
    loaders: Any = model.val_dataloader()
    for loader in loaders if training else ():
        validation = _manifests(cfg, "validation_ds", loader)
        overlap = find_overlap(training, validation) if validation else None
        if overlap is not None:
            files = ([file for manifest in some for file in manifest.files] for some in (training, validation))
            command = f"{without_overlap(*files)} writes manifests without them"
            remedy = "make the tar files of one set without them" if overlap.by_name else command
            yield f"{overlap}: val_loss will be too low; {remedy}"


def _manifests(cfg: DictConfig, name: str, loader: Any) -> list[Manifest]:
    """The manifests of a loader; lhotse keeps none, so that those of its configuration are read, of all its sets."""
    found = list(manifests_in(getattr(loader, "dataset", None)))
    node: Any = OmegaConf.to_container(cfg.model[name])
    if found or not node.get("use_lhotse") or node.get("tarred_audio_filepaths"):
        return found
    key = f"model.{name}.manifest_filepath"
    names = expand_paths(sources({"manifest_filepath": node.get("manifest_filepath")}), key)
    with suppress(ManifestError):  # what lhotse cannot read of them it says itself
        return [load_manifest(names, key=key, skip_bad_lines=True)] if names else []
    return []
