"""Model files of every format, by suffix: read, written, converted, restored, and used to initialise another model.

`.nemo` and `.safetensors` are read and written, Lightning's `.ckpt` is only read. No file is trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from nest_ssl.checkpoint.config import LARGEST_CONFIG, NEMO_CLASS, parse_config, refuse_evaluation, resolved
from nest_ssl.checkpoint.lightning import load_lightning_checkpoint, load_lightning_model
from nest_ssl.checkpoint.nemo import load_nemo, load_nemo_config, write_nemo
from nest_ssl.checkpoint.safetensors import load_safetensors, load_safetensors_config, write_safetensors
from nest_ssl.checkpoint.weights import SavableModel, SavedModel, reading, refuse_unusable_weights
from nest_ssl.compat import root_config
from nest_ssl.config.schema import WeightSource, read
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
# keys of a configuration
_NEMO, _LIGHTNING, _BY_NAME = "init_from_nemo_model", "init_from_ptl_ckpt", "init_from_pretrained_model"
Override = Path | str | DictConfig | None
Model = TypeVar("Model", bound=nn.Module)
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
    reader: Callable[[Path], SavedModel] = read_model,
) -> Model:
    """Load the model in a file, in training mode as in NeMo, on a GPU if there is one; its data need not exist.

    `build` makes the model from its configuration; `override` replaces the one in the file. With `strict`, file and
    model must have the same tensors; without, those that both have are loaded. `reader` reads files whose suffix does
    not tell their format.
    """
    path = Path(path).expanduser()
    saved = reader(path)
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

    def build(config: DictConfig) -> Nest:
        settings: Any = OmegaConf.to_container(config)
        return Nest({**settings, "compile": False})

    return restore_model(build, path, map_location=map_location).eval()


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
        path = Path(source.path).expanduser()
        weights = read_model(path).state_dict if key == _NEMO else load_lightning_checkpoint(path)["state_dict"]
        _load_part(model, weights, source, path)


def _sources(value: Any, key: str) -> list[WeightSource]:
    """Return the sources of a value, in order: one path, or a table `{any name: {path, include, exclude}}`."""
    if isinstance(value, str):
        return [WeightSource(value)]
    if not isinstance(value, DictConfig):
        raise ConfigError(f"{key}: {value!r} is neither a path nor a table of paths")
    entries: Any = OmegaConf.to_container(value, resolve=True)
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise ConfigError(
                f"{key}.{name}: {entry!r} is not a table; expected path, and include or exclude if wanted"
            )
    return [read(WeightSource, entry, f"{key}.{name}") for name, entry in entries.items()]


def _load_part(model: nn.Module, weights: Mapping[str, Tensor], source: WeightSource, path: Path) -> None:
    own = model.state_dict()
    chosen = {name: tensor for name, tensor in weights.items() if name in own and _wanted(name, source)}
    if not chosen:
        raise CheckpointError(f"{path}: none of its {len(weights)} tensors is wanted and in the model")
    refuse_unusable_weights(chosen, own, path)
    model.load_state_dict(chosen, strict=False)
    _log.info(
        "initialised %d of the model's %d tensors from %s (%d in the file not used)",
        *(len(chosen), len(own), path, len(weights) - len(chosen)),
    )


def _wanted(name: str, source: WeightSource) -> bool:
    return any(part in name for part in source.include) and not any(part in name for part in source.exclude)
