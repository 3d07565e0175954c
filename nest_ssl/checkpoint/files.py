"""Model files of every format, by their suffix: `.nemo`, `.safetensors` and, to read, Lightning's `.ckpt`."""

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
    """The model in this file, an archive unless its name says otherwise."""
    return READERS.get(path.suffix.lower(), load_nemo)(path)


def read_config(path: Path) -> DictConfig:
    """The configuration in this file, without the weights where that is possible."""
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return load_safetensors_config(path)
    return load_lightning_model(path).config if suffix == ".ckpt" else load_nemo_config(path)


def write_model(saved: SavedModel, path: Path) -> None:
    """Write an archive, unless the name asks for another format."""
    WRITERS.get(path.suffix.lower(), write_nemo)(saved, path)


def convert(source: Path, target: Path) -> None:
    """Rewrite a model in the format that the suffix of `target` names; configuration and weights stay the same."""
    for path, known in ((source, READERS), (target, WRITERS)):
        if path.suffix.lower() not in known:
            raise CheckpointError(f"{path}: its suffix names no format here; expected {' or '.join(known)}")
    if source.resolve() == target.resolve():
        raise CheckpointError(f"{target}: is the source itself; give the result another name")
    saved = read_model(source)
    write_model(SavedModel(usable_config(saved.config, source), saved.state_dict), target)


def usable_config(config: DictConfig, origin: Path | str) -> DictConfig:
    """A configuration that is there, of our model's class, with its references resolved."""
    if not config:
        raise CheckpointError(
            f"{origin}: has weights but no configuration of the model; use the .nemo archive that they came from, or "
            "restore_from with an override_config_path"
        )
    refuse_other_class(config, origin)
    return resolved(config, origin)


def refuse_other_class(config: DictConfig, origin: Path | str) -> None:
    """Weights of another model do not fit ours; a configuration that names no class is taken for ours, as in NeMo."""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    target = plain.get("target", NEMO_CLASS)
    if target != NEMO_CLASS:
        raise CheckpointError(
            f"{origin}: holds a {one_line(target)}; only {NEMO_CLASS.rpartition('.')[2]} can be restored here"
        )
