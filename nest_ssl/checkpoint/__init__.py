"""Model files: `.nemo`, `.safetensors` and Lightning checkpoints, read safely and written atomically."""

from nest_ssl.atomic import atomic_write
from nest_ssl.checkpoint.lightning import load_lightning_checkpoint, load_lightning_model, nemo_checkpoint_types
from nest_ssl.checkpoint.nemo import load_nemo, save_nemo, write_nemo
from nest_ssl.checkpoint.restore import (
    convert,
    initialise_from_pretrained,
    pretrained_file,
    restore_config,
    restore_for_use,
    restore_model,
    save_model,
)
from nest_ssl.checkpoint.safetensors import load_safetensors, save_safetensors
from nest_ssl.checkpoint.weights import SavedModel

__all__ = [
    "SavedModel",
    "atomic_write",
    "convert",
    "initialise_from_pretrained",
    "load_lightning_checkpoint",
    "load_lightning_model",
    "load_nemo",
    "load_safetensors",
    "nemo_checkpoint_types",
    "pretrained_file",
    "restore_config",
    "restore_for_use",
    "restore_model",
    "save_model",
    "save_nemo",
    "save_safetensors",
    "write_nemo",
]
