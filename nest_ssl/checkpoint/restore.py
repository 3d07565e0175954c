"""`save_to` and `restore_from`: a model to a file and back, as NeMo does it, but never trusting the file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor

from nest_ssl.checkpoint.config import LARGEST_CONFIG, parse_config, refuse_evaluation
from nest_ssl.checkpoint.files import read_config, read_model, refuse_other_class, usable_config, write_model
from nest_ssl.checkpoint.safe_load import reading
from nest_ssl.checkpoint.saved_model import SavedModel
from nest_ssl.checkpoint.weights import refuse_unusable_weights
from nest_ssl.compat import root_config
from nest_ssl.errors import CheckpointError, ConfigError, one_line
from nest_ssl.model.build import MODEL_KEYS
from nest_ssl.model.size import check_size
from nest_ssl.regular_file import open_regular

if TYPE_CHECKING:
    from nest_ssl.checkpoint.model_files import ModelFiles
    from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

_log = logging.getLogger(__name__)
# A model in half precision, its positions and the tables on the way to its filters, none of which the file holds.
_LARGER_THAN_WEIGHTS = 4
_SMALL_MODEL = 256 * 2**20  # bytes
Override = Path | str | DictConfig | None
Model = TypeVar("Model", bound="ModelFiles")


def save_model(model: ModelFiles, path: Path | str) -> None:
    """Write a `.nemo` archive or, if the name ends in it, a `.safetensors` file."""
    write_model(SavedModel(model.cfg, model.state_dict()), Path(path).expanduser())


def restore_config(path: Path | str, override: Override = None) -> DictConfig:
    """The configuration that `restore_model` would build from; no weights are read for it if possible."""
    path = Path(path).expanduser()
    return _chosen_config(read_config(path), path, override)


def restore_model(
    model_class: type[Model],
    path: Path | str,
    override: Override = None,
    map_location: torch.device | str | None = None,
    strict: bool = True,
    trainer: Trainer | None = None,
    read: Callable[[Path], SavedModel] = read_model,
) -> Model:
    """The model in a file, ready to train (as in NeMo), on the GPU if there is one; its data need not exist.

    `override` takes the place of the whole configuration in the file. With `strict`, file and model must have the same
    tensors; without, those that both have are loaded. `read` is for files whose name does not tell their format.
    """
    path = Path(path).expanduser()
    saved = read(path)
    config = _chosen_config(saved.config, path, override)
    try:
        if strict:
            refuse_larger_model(config, saved.state_dict)
        model = model_class(cfg=config, trainer=trainer)
    except ConfigError as error:
        raise CheckpointError(f"{_origin(path, override)}: {error}") from error
    except Exception as error:  # values that nobody would write can raise anything
        origin = _origin(path, override)
        raise CheckpointError(f"{origin}: no model can be built from it: {one_line(error)}") from error
    _load_weights(model, saved.state_dict, strict, path)
    _log.info("restored %s from %s", model_class.__name__, path)
    return model.to(map_location or ("cuda" if torch.cuda.is_available() else "cpu"))


def restore_for_use(
    path: Path | str, map_location: torch.device | str | None = None
) -> EncDecDenoiseMaskedTokenPredModel:
    """The model in a file, to be listened to: in evaluation mode, not compiled, which every new length would repeat."""
    from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

    config = restore_config(path)
    with open_dict(config):
        config.compile = False
    return restore_model(EncDecDenoiseMaskedTokenPredModel, path, config, map_location).eval()


def refuse_larger_model(config: DictConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse a configuration whose model is by far larger than the weights that come with it."""
    held = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    settings: Any = OmegaConf.to_container(config, resolve=True)
    check_size(settings, "model", _LARGER_THAN_WEIGHTS * held + _SMALL_MODEL, "its weights are for one of at most")


def pretrained_file(name: Path | str) -> Path:
    """The local file that stands for a pretrained model."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise CheckpointError(f"{str(name)!r}: is not a file, and models are not downloaded; get it and give its path")
    return path


def _chosen_config(stored: DictConfig, path: Path, override: Override) -> DictConfig:
    """The override, which has to be right, or what the file says, from which keys that nothing reads are left out."""
    if override is not None:
        refuse_other_class(stored, path)
        return usable_config(_override_config(override), _origin(path, override))
    stored = usable_config(stored, path)
    # NeMo ignores what it does not know in the `model` node, so that archives of other versions have such keys.
    unknown = [str(key) for key in stored if key not in MODEL_KEYS]
    if unknown:
        _log.warning("%s: ignored settings that the model does not have: %s", path, one_line(", ".join(unknown)))
    return OmegaConf.masked_copy(stored, [key for key in stored if key in MODEL_KEYS])


def _override_config(override: Path | str | DictConfig) -> DictConfig:
    """A file is read as archives are; an object must not evaluate anything either, since it may come from one."""
    if isinstance(override, DictConfig):
        whole = root_config(override)  # references may lead out of the node that was given
        refuse_evaluation(OmegaConf.to_container(whole, resolve=False), "override_config_path")
        model = override.get("model", override)
        return model if isinstance(model, DictConfig) else override
    path = Path(override).expanduser()
    with reading(path, "a configuration"), open_regular(path) as file:
        return parse_config(file.read(LARGEST_CONFIG + 1), path)


def _origin(path: Path, override: Override) -> Path | str:
    """Where the configuration came from, to name it in errors."""
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
