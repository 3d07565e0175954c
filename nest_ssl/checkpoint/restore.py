"""`save_to` and `restore_from`: write a model to a file and load it again, as in NeMo, without trusting the file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor, nn

from nest_ssl.checkpoint.config import LARGEST_CONFIG, parse_config, refuse_evaluation
from nest_ssl.checkpoint.files import read_config, read_model, refuse_other_class, usable_config, write_model
from nest_ssl.checkpoint.safe_load import reading
from nest_ssl.checkpoint.saved_model import SavableModel, SavedModel
from nest_ssl.checkpoint.weights import refuse_unusable_weights
from nest_ssl.compat import root_config
from nest_ssl.errors import CheckpointError, ConfigError, one_line
from nest_ssl.model.build import MODEL_KEYS
from nest_ssl.model.nest import Nest
from nest_ssl.model.size import check_size
from nest_ssl.regular_file import open_regular

_log = logging.getLogger(__name__)
# A built model may be so many times larger than its weights: they may be stored in half precision, and positional
# encodings and the tables for mel filters are not in the file.
_LARGER_THAN_WEIGHTS = 4
_SMALL_MODEL = 256 * 2**20  # bytes that any model may have
Override = Path | str | DictConfig | None
Model = TypeVar("Model", bound=nn.Module)


def save_model(model: SavableModel, path: Path | str) -> None:
    """Write a `.safetensors` file if the path ends in that suffix, else a `.nemo` archive."""
    write_model(SavedModel(model.cfg, model.state_dict()), Path(path).expanduser())


def restore_config(path: Path | str, override: Override = None) -> DictConfig:
    """Return the configuration that `restore_model` would use, without reading weights if the format allows it."""
    path = Path(path).expanduser()
    return _chosen_config(read_config(path), path, override)


def restore_model(
    build: Callable[[DictConfig], Model],
    path: Path | str,
    override: Override = None,
    map_location: torch.device | str | None = None,
    strict: bool = True,
    read: Callable[[Path], SavedModel] = read_model,
) -> Model:
    """Load the model in a file, in training mode as in NeMo, on a GPU if there is one; its data need not exist.

    `build` makes the model from its configuration; `override` replaces the one in the file. With `strict`, file and
    model must have the same tensors; without, those that both have are loaded. `read` reads files whose suffix does
    not tell their format.
    """
    path = Path(path).expanduser()
    saved = read(path)
    config = _chosen_config(saved.config, path, override)
    try:
        if strict:
            refuse_larger_model(config, saved.state_dict)
        model = build(config)
    except ConfigError as error:
        raise CheckpointError(f"{_origin(path, override)}: {error}") from error
    except Exception as error:  # malicious values can raise anything
        origin = _origin(path, override)
        raise CheckpointError(f"{origin}: no model can be built from it: {one_line(error)}") from error
    _load_weights(model, saved.state_dict, strict, path)
    _log.info("restored %s from %s", type(model).__name__, path)
    return model.to(map_location or ("cuda" if torch.cuda.is_available() else "cpu"))


def restore_for_use(path: Path | str, map_location: torch.device | str | None = None) -> Nest:
    """Load the model in a file for inference: in evaluation mode, not compiled (new lengths would recompile it)."""
    config = restore_config(path)
    with open_dict(config):
        config.compile = False
    return restore_model(_build_nest, path, config, map_location).eval()


def refuse_larger_model(config: DictConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse a configuration whose model is much larger than the weights in its file."""
    held = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    settings: Any = OmegaConf.to_container(config, resolve=True)
    check_size(settings, _LARGER_THAN_WEIGHTS * held + _SMALL_MODEL, "its weights are for one of at most")


def pretrained_file(name: Path | str) -> Path:
    """Return the path of a local model file; refuse names of models to download."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise CheckpointError(f"{str(name)!r}: is not a file, and models are not downloaded; get it and give its path")
    return path


def _build_nest(config: DictConfig) -> Nest:
    settings: Any = OmegaConf.to_container(config, resolve=True)
    return Nest(settings)


def _chosen_config(stored: DictConfig, path: Path, override: Override) -> DictConfig:
    """Return the override, which must be valid, or the stored configuration without unknown keys."""
    if override is not None:
        refuse_other_class(stored, path)
        return usable_config(_override_config(override), _origin(path, override))
    stored = usable_config(stored, path)
    # NeMo ignores unknown keys in the `model` node, and archives of other versions have some.
    unknown = [str(key) for key in stored if key not in MODEL_KEYS]
    if unknown:
        _log.warning("%s: ignored settings that the model does not have: %s", path, one_line(", ".join(unknown)))
    return OmegaConf.masked_copy(stored, [key for key in stored if key in MODEL_KEYS])


def _override_config(override: Path | str | DictConfig) -> DictConfig:
    """Return the `model` node of an override; an object is checked too, as it may come from a file."""
    if isinstance(override, DictConfig):
        whole = root_config(override)  # references may lead out of the given node
        refuse_evaluation(OmegaConf.to_container(whole, resolve=False), "override_config_path")
        model = override.get("model", override)
        return model if isinstance(model, DictConfig) else override
    path = Path(override).expanduser()
    with reading(path, "a configuration"), open_regular(path) as file:
        return parse_config(file.read(LARGEST_CONFIG + 1), path)


def _origin(path: Path, override: Override) -> Path | str:
    """Return the name of the configuration's origin, for errors."""
    if override is None:
        return path
    return "override_config_path" if isinstance(override, DictConfig) else Path(override)


def _load_weights(model: Any, weights: Mapping[str, Tensor], strict: bool, path: Path) -> None:
    own = model.state_dict()
    if own.keys().isdisjoint(weights):
        raise CheckpointError(f"{path}: none of its {len(weights)} tensors is in the model")
    refuse_unusable_weights(weights, own, path)
    if strict:
        _refuse_names([name for name in own if name not in weights], "is in the model but not in the file", path)
        _refuse_names([name for name in weights if name not in own], "is in the file but not in the model", path)
    model.load_state_dict(dict(weights), strict=False)


def _refuse_names(names: list[str], why: str, path: Path) -> None:
    if names:
        others = f" (nor are {len(names) - 1} others)" if len(names) > 1 else ""
        raise CheckpointError(f"{path}: {one_line(names[0])} {why}{others}; strict=False loads what both have")
