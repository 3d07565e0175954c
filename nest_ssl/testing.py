"""A small NEST configuration for tests and experiments: every part of the real one, but computed in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from nest_ssl.data.dummy import DummyCorpus

_SMALL = [
    "model.num_classes=64",
    "model.encoder.n_layers=2",
    "model.encoder.d_model=32",
    "model.encoder.n_heads=4",
    "model.encoder.subsampling_conv_channels=16",
    "model.masking.mask_prob=0.04",
]


def small_config(config: Path, overrides: Sequence[str] = ()) -> DictConfig:
    """Load a configuration, make its model small, and apply overrides as on the command line."""
    return OmegaConf.merge(OmegaConf.load(config), OmegaConf.from_dotlist([*_SMALL, *overrides]))  # type: ignore[return-value]


def manifests_of(corpus: DummyCorpus) -> list[str]:
    """Return overrides that train on this corpus with its noise, and validate on its other utterances without noise."""
    return [
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.train_ds.noise_manifest={corpus.noise_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        "model.validation_ds.noise_manifest=null",
    ]
