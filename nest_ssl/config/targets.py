"""The only classes that a configuration can name with `_target_`, and how they are built from it.

The table has NeMo's paths too, so that NeMo's configuration files train unchanged. A configuration cannot make us
import anything outside the table.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from nest_ssl.errors import ConfigError, nearest, one_line, refuse_unknown
from nest_ssl.moved import MOVED

# class name -> our module, then every path under which configurations name it
_CLASSES = {
    "AudioToMelSpectrogramPreprocessor": "nest_ssl.model.mel",
    "ConformerEncoder": "nest_ssl.model.conformer.encoder",
    "RandomBlockMasking": "nest_ssl.model.masking",
    "RandomProjectionVectorQuantizer": "nest_ssl.model.quantizer",
    "MultiSoftmaxDecoder": "nest_ssl.model.decoder",
    "MultiMLMLoss": "nest_ssl.model.loss",
    "SpectrogramAugmentation": "nest_ssl.model.spec_augment",
    "SpeakerNoiseAugmentation": "nest_ssl.data.augmentation",
    "MultiSpeakerNoiseAugmentation": "nest_ssl.data.augmentation",
}
_NEMO_PATHS = {
    "AudioToMelSpectrogramPreprocessor": ("modules", "modules.audio_preprocessing"),
    "ConformerEncoder": ("modules", "modules.conformer_encoder"),
    "RandomBlockMasking": ("modules", "modules.ssl_modules", "modules.ssl_modules.masking"),
    "RandomProjectionVectorQuantizer": ("modules", "modules.ssl_modules", "modules.ssl_modules.quantizers"),
    "MultiSoftmaxDecoder": ("modules", "modules.ssl_modules", "modules.ssl_modules.multi_softmax_decoder"),
    "MultiMLMLoss": ("losses", "losses.ssl_losses", "losses.ssl_losses.mlm"),
    "SpectrogramAugmentation": ("modules", "modules.audio_preprocessing"),
    "SpeakerNoiseAugmentation": ("modules.ssl_modules", "modules.ssl_modules.augmentation"),
    "MultiSpeakerNoiseAugmentation": ("modules.ssl_modules", "modules.ssl_modules.augmentation"),
}
TARGETS: dict[str, str] = {
    **{f"nemo.collections.asr.{path}.{name}": name for name, paths in _NEMO_PATHS.items() for path in paths},
    **{f"{module}.{name}": name for name, module in _CLASSES.items()},
    **{f"{old}.{name}": name for name, module in _CLASSES.items() for old, new in MOVED.items() if new == module},
}


def resolve(target: Any, key: str) -> type:
    """Return the class that a `_target_` names; `key` is the node, for the error."""
    if not isinstance(target, str) or target not in TARGETS:
        suggestion = nearest(str(target), TARGETS)
        raise ConfigError(f"{key}._target_: {one_line(repr(target))} is not a known class{suggestion}")
    name = TARGETS[target]
    return getattr(importlib.import_module(_CLASSES[name]), name)


def arguments_of(cls: type) -> list[str]:
    """Return the keys that a node of this class can have besides `_target_`."""
    return list(inspect.signature(cls).parameters)


def check_arguments(cls: type, config: Mapping[str, Any], key: str) -> None:
    """Refuse a key that the class does not have; the error names the nearest one."""
    names = (name for name in config if name != "_target_")
    refuse_unknown(names, arguments_of(cls), key, owner=cls.__name__)


def instantiate(config: Mapping[str, Any], key: str) -> Any:
    """Build the object that a node describes: `_target_` names its class, the other keys are the arguments."""
    if "_target_" not in config:
        raise ConfigError(f"{key}: has no `_target_` that names a class")
    cls = resolve(config["_target_"], key)
    check_arguments(cls, config, key)
    arguments = {name: value for name, value in config.items() if name != "_target_"}
    missing = [
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in arguments
    ]
    if missing:
        raise ConfigError(f"{key}.{missing[0]}: missing; {cls.__name__} needs it")
    try:
        return cls(**arguments)
    except Exception as error:  # malicious values can raise anything
        raise ConfigError(f"{key}: {one_line(error)}") from error
