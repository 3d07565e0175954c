"""Initialise from the weights of another model: `init_from_nemo_model` and `init_from_ptl_ckpt` of a configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from nest_ssl.checkpoint.lightning import load_lightning_checkpoint
from nest_ssl.checkpoint.restore import read_model
from nest_ssl.checkpoint.weights import refuse_unusable_weights
from nest_ssl.errors import CheckpointError, ConfigError, refuse_unknown

_log = logging.getLogger(__name__)
_NEMO, _LIGHTNING, _BY_NAME = "init_from_nemo_model", "init_from_ptl_ckpt", "init_from_pretrained_model"


@dataclass(frozen=True)
class WeightSource:
    """A file and the tensors to load from it: names that contain any of `include` and none of `exclude`."""

    path: Path
    include: tuple[str, ...] = ("",)
    exclude: tuple[str, ...] = ()

    def select(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor
            for name, tensor in state_dict.items()
            if any(part in name for part in self.include) and not any(part in name for part in self.exclude)
        }


def initialise_from_pretrained(model: nn.Module, cfg: DictConfig) -> None:
    """Load the file that the `init_from_*` key of the whole configuration names, if any, into `model`.

    Tensors that only the file or only the model has are ignored; different shapes are an error.
    """
    given = [key for key in (_NEMO, _LIGHTNING, _BY_NAME) if cfg.get(key) is not None]
    if not given:
        return
    if len(given) > 1:
        raise ConfigError(f"{given[0]}: given together with {given[1]}; choose one")
    (key,) = given
    if key == _BY_NAME:
        raise ConfigError(f"{key}: models are not downloaded by name; get the .nemo file and give {_NEMO}=<path>")
    for source in _sources(cfg[key], key):
        if key == _NEMO:
            state_dict = read_model(source.path).state_dict
        else:
            state_dict = load_lightning_checkpoint(source.path)["state_dict"]
        _load_part(model, state_dict, source)


def _sources(value: Any, key: str) -> Iterator[WeightSource]:
    """Yield the sources of a value: one path, or a table `{any name: {path, include, exclude}}` in order of loading."""
    if isinstance(value, str):
        yield WeightSource(Path(value).expanduser())
        return
    if not isinstance(value, DictConfig):
        raise ConfigError(f"{key}: {value!r} is neither a path nor a table of paths")
    entries: Any = OmegaConf.to_container(value, resolve=True)
    for name, entry in entries.items():
        yield _source(entry, f"{key}.{name}")


def _source(entry: Any, key: str) -> WeightSource:
    if not isinstance(entry, dict):
        raise ConfigError(f"{key}: {entry!r} is not a table; expected path, and include or exclude if wanted")
    known = ("path", "include", "exclude")
    refuse_unknown(entry, known, key, more=f"; expected {', '.join(known)}")
    if not isinstance(entry.get("path"), str):
        raise ConfigError(f"{key}.path: missing; give the file to load from")
    parts = {name: entry[name] for name in ("include", "exclude") if entry.get(name) is not None}
    for name, value in parts.items():
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            raise ConfigError(f"{key}.{name}: {value!r} is not a list of parts of tensor names")
    return WeightSource(Path(entry["path"]).expanduser(), **{name: tuple(value) for name, value in parts.items()})


def _load_part(model: nn.Module, state_dict: Mapping[str, Tensor], source: WeightSource) -> None:
    own = model.state_dict()
    chosen = {name: tensor for name, tensor in source.select(state_dict).items() if name in own}
    if not chosen:
        raise CheckpointError(f"{source.path}: none of its {len(state_dict)} tensors is wanted and in the model")
    refuse_unusable_weights(chosen, own, source.path)
    model.load_state_dict(chosen, strict=False)
    _log.info(
        "initialised %d of the model's %d tensors from %s (%d in the file not used)",
        *(len(chosen), len(own), source.path, len(state_dict) - len(chosen)),
    )
