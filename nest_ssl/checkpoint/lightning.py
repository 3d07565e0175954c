"""Lightning checkpoints (`.ckpt`) of nest_ssl and NeMo, read without running code from the file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint.config import config_of_values
from nest_ssl.checkpoint.weights import SavedModel, checked_state_dict, load_tensors, reading
from nest_ssl.compat import pickled_content
from nest_ssl.errors import CheckpointError


class PickledConfig:
    """Replaces the OmegaConf classes in NeMo's checkpoints: it keeps the stored fields and has no behaviour.

    The real classes would resolve references such as `${oc.env:HOME}`.
    """

    def __init__(self, *_: Any) -> None:
        pass


_STAND_INS = [
    (PickledConfig, name)
    for name in (
        *("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig"),
        *("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata"),
        *(f"omegaconf.nodes.{kind}Node" for kind in ("Any", "Boolean", "Float", "Integer", "Path", "String")),
        *("typing.Any", "typing.Union", "collections.defaultdict"),
        *("builtins.dict", "builtins.list", "builtins.int", "builtins.float", "builtins.str", "builtins.bool"),
    )
]


def nemo_checkpoint_types() -> contextlib.AbstractContextManager[Any]:
    """Within the block, `torch.load(weights_only=True)`, also inside Lightning, accepts NeMo's checkpoints."""
    return torch.serialization.safe_globals(_STAND_INS)  # type: ignore[arg-type]


def load_lightning_checkpoint(path: Path | str, in_place: bool = False) -> dict[str, Any]:
    """Load a checkpoint on the CPU; its `hyper_parameters`, if any, become plain containers.

    With `in_place`, tensors are memory-mapped: they are read when they are used.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size == 0:
        raise CheckpointError(
            f"{path}: is empty: its copy was never finished; copy it again, or use another checkpoint"
        )
    with reading(path, "a Lightning checkpoint"):
        with nemo_checkpoint_types():
            checkpoint = load_tensors(path, [name for _, name in _STAND_INS], mmap=in_place)
        if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
            raise CheckpointError(f"{path}: not a Lightning checkpoint: it has no state_dict")
        checkpoint["state_dict"] = checked_state_dict(checkpoint["state_dict"], path)
        checkpoint.pop("hparams_type", None)  # a class; not needed for plain values
        if "hyper_parameters" in checkpoint:
            checkpoint["hyper_parameters"] = _plain(checkpoint["hyper_parameters"], {})
    return checkpoint


def load_lightning_model(path: Path | str) -> SavedModel:
    """Load the model in a checkpoint: its weights, and the configuration in its `hyper_parameters`."""
    path = Path(path)
    checkpoint = load_lightning_checkpoint(path)
    settings = checkpoint.get("hyper_parameters")
    stored = settings.get("cfg") if isinstance(settings, dict) else None
    with reading(path, "a Lightning checkpoint"):
        config: DictConfig = config_of_values(stored, path) if stored else OmegaConf.create({})
    return SavedModel(config, checkpoint["state_dict"])


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Return a stored setting as Python's containers and values, with references as text.

    `done` holds what is converted already, by identity: a small file that repeats values could otherwise take forever.
    """
    if isinstance(value, PickledConfig):
        value = pickled_content(vars(value))
    if not isinstance(value, dict | list):
        return value
    if id(value) not in done:
        if isinstance(value, dict):
            done[id(value)] = {key: _plain(item, done) for key, item in value.items()}
        else:
            done[id(value)] = [_plain(item, done) for item in value]
    return done[id(value)]
