"""Model files by suffix: `.nemo` and `.safetensors`, read and written, and Lightning's `.ckpt`, only read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint.config import NEMO_CLASS, resolved
from nest_ssl.checkpoint.lightning import load_lightning_model
from nest_ssl.checkpoint.nemo import load_nemo, load_nemo_config, write_nemo
from nest_ssl.checkpoint.safetensors import load_safetensors, load_safetensors_config, write_safetensors
from nest_ssl.checkpoint.saved_model import SavedModel
from nest_ssl.errors import CheckpointError, one_line

READERS: dict[str, Callable[[Path], SavedModel]] = {
    ".nemo": load_nemo,
    ".safetensors": load_safetensors,
    ".ckpt": load_lightning_model,
}
WRITERS: dict[str, Callable[[SavedModel, Path], None]] = {".nemo": write_nemo, ".safetensors": write_safetensors}


def read_model(path: Path) -> SavedModel:
    """Read the model in a file; a file with another suffix is read as a `.nemo` archive."""
    return READERS.get(path.suffix.lower(), load_nemo)(path)


def read_config(path: Path) -> DictConfig:
    """Read the configuration in a file, without reading the weights if the format allows it."""
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return load_safetensors_config(path)
    return load_lightning_model(path).config if suffix == ".ckpt" else load_nemo_config(path)


def write_model(saved: SavedModel, path: Path) -> None:
    """Write a model in the format of the file's suffix; `.nemo` for other suffixes."""
    WRITERS.get(path.suffix.lower(), write_nemo)(saved, path)


def convert(source: Path, target: Path) -> None:
    """Convert a model file into the format of the suffix of `target`; configuration and weights stay the same."""
    for path, known in ((source, READERS), (target, WRITERS)):
        if path.suffix.lower() not in known:
            raise CheckpointError(f"{path}: its suffix names no format here; expected {' or '.join(known)}")
    if source.resolve() == target.resolve():
        raise CheckpointError(f"{target}: is the source itself; give the result another name")
    saved = read_model(source)
    write_model(SavedModel(usable_config(saved.config, source), saved.state_dict), target)


def usable_config(config: DictConfig, origin: Path | str) -> DictConfig:
    """Return the configuration with its references resolved; refuse an empty one and one of another class of model."""
    if not config:
        raise CheckpointError(
            f"{origin}: has weights but no configuration of the model; use the .nemo archive that they came from, or "
            "restore_from with an override_config_path"
        )
    refuse_other_class(config, origin)
    return resolved(config, origin)


def refuse_other_class(config: DictConfig, origin: Path | str) -> None:
    """Refuse the configuration of another class of model; one that names no class is accepted, as in NeMo."""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    target = plain.get("target", NEMO_CLASS)
    if target != NEMO_CLASS:
        raise CheckpointError(
            f"{origin}: holds a {one_line(target)}; only {NEMO_CLASS.rpartition('.')[2]} can be restored here"
        )
