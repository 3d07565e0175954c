"""Checkpoints: `.nemo` archives both ways, Lightning checkpoints, safe loading, whole-or-nothing writing."""

from nest_ssl.checkpoint.archive import NemoArchive, load_nemo, save_nemo
from nest_ssl.checkpoint.atomic import atomic_write
from nest_ssl.checkpoint.lightning import load_lightning_checkpoint, nemo_checkpoint_types
from nest_ssl.checkpoint.pretrained import initialise_from_pretrained

__all__ = [
    "NemoArchive",
    "atomic_write",
    "initialise_from_pretrained",
    "load_lightning_checkpoint",
    "load_nemo",
    "nemo_checkpoint_types",
    "save_nemo",
]
