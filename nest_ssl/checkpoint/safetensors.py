"""`.safetensors` files: weights that many tools read, with the model's configuration as YAML in the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from nest_ssl.atomic import atomic_write
from nest_ssl.checkpoint.config import config_text, parse_config
from nest_ssl.checkpoint.nemo import CONFIG_NAME
from nest_ssl.checkpoint.weights import SavableModel, SavedModel, reading


def save_safetensors(model: SavableModel, path: Path | str) -> None:
    """Write the `cfg` and weights of `model` to one file; call it on one rank only."""
    write_safetensors(SavedModel(model.cfg, model.state_dict()), path)


def write_safetensors(saved: SavedModel, path: Path | str) -> None:
    """Write a model, given as configuration and weights, to one file."""
    # A single entry of metadata: several would be written in random order, and equal models should give equal files.
    metadata = {CONFIG_NAME: config_text(saved.config)}
    with atomic_write(path) as temporary:
        save_file(_without_sharing(saved.state_dict), temporary, metadata)


def load_safetensors(path: Path | str) -> SavedModel:
    """Read the weights and, if nest_ssl wrote the file, the configuration."""
    path = Path(path)
    with reading(path, "a .safetensors file"), safe_open(path, framework="pt", device="cpu") as file:
        config = _config(file, path)
        return SavedModel(config, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (not a dict)


def load_safetensors_config(path: Path | str) -> DictConfig:
    """Read only the configuration."""
    path = Path(path)
    with reading(path, "a .safetensors file"), safe_open(path, framework="pt", device="cpu") as file:
        return _config(file, path)


def _config(file: Any, path: Path) -> DictConfig:
    text = (file.metadata() or {}).get(CONFIG_NAME)
    return OmegaConf.create({}) if text is None else parse_config(text, path)


def _without_sharing(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, which the format does not allow; some models have their sub-sampling twice."""
    separate: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if memory in taken else tensor
        taken.add(memory)
    return separate
