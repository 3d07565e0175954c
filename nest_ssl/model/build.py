"""Build the model's parts from its configuration, in the order in which NeMo draws their random weights."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nest_ssl.config.schema import DATA_SETS, ModelSettings, keys_of, settings_of
from nest_ssl.config.targets import instantiate
from nest_ssl.errors import ConfigError, refuse_unknown
from nest_ssl.memory import machine_memory
from nest_ssl.model import (
    AudioToMelSpectrogramPreprocessor,
    ConformerEncoder,
    MultiMLMLoss,
    MultiSoftmaxDecoder,
    RandomBlockMasking,
    RandomProjectionVectorQuantizer,
)
from nest_ssl.model.size import check_size

PARTS = ("preprocessor", "spec_augment", "masking", "quantizer", "encoder", "decoder", "loss")
MODEL_KEYS = {*PARTS, *DATA_SETS, *keys_of(ModelSettings)}
MODEL_DEFAULTS: dict[str, Any] = {
    name: setting.default for name, setting in settings_of(ModelSettings).items() if setting.default is not None
}


@dataclass
class Parts:
    """The parts of the model."""

    preprocessor: AudioToMelSpectrogramPreprocessor
    quantizer: RandomProjectionVectorQuantizer
    mask_processor: RandomBlockMasking
    encoder: ConformerEncoder
    decoder: MultiSoftmaxDecoder
    loss: MultiMLMLoss


def build_parts(settings: Mapping[str, Any], key: str = "model") -> Parts:
    """Build the parts that a resolved `model` node describes."""
    check_parts(settings, key)
    settings = {**MODEL_DEFAULTS, **settings}
    _check_time_steps(settings, key)
    if torch.get_default_device().type != "meta":  # which allocates nothing
        check_size(settings, key, machine_memory(), "this machine has")
    nodes = {name: dict(settings[name]) for name in PARTS if settings.get(name) is not None}
    if settings["mask_position"] == "post_conv":
        _describe_subsampled_frames(nodes)

    def build(name: str) -> Any:
        if name == "encoder" and os.environ.get("USE_NEMO_CONFORMER", "").lower() in ("1", "true", "yes"):
            return _nemo_encoder(nodes[name])
        return instantiate(nodes[name], f"{key}.{name}")

    preprocessor = build("preprocessor")
    # NeMo's base class builds an encoder and a decoder, and its subclass replaces them. Both are built and discarded
    # here too: the final weights equal NeMo's only if these are drawn first.
    build("encoder")
    build("decoder")
    if "spec_augment" in nodes:
        build("spec_augment")
    return Parts(
        preprocessor=preprocessor,
        quantizer=build("quantizer"),
        mask_processor=build("masking"),
        encoder=build("encoder"),
        decoder=build("decoder"),
        loss=build("loss"),
    )


def check_parts(settings: Mapping[str, Any], key: str = "model") -> None:
    """Refuse a `model` node with an unknown key, a missing part, or an invalid choice."""
    settings = {**MODEL_DEFAULTS, **settings}
    refuse_unknown(settings, MODEL_KEYS, key)
    for name in PARTS:
        if name != "spec_augment" and not isinstance(settings.get(name), Mapping):
            raise ConfigError(f"{key}.{name}: missing; it describes a part of the model")
    position = settings["mask_position"]
    if position not in ("pre_conv", "post_conv"):
        raise ConfigError(f"{key}.mask_position: {position!r}; expected 'pre_conv' or 'post_conv'")
    _check_numerics(settings, key)


def _check_time_steps(settings: Mapping[str, Any], key: str) -> None:
    steps = {name: settings[name].get("combine_time_steps", 1) for name in ("quantizer", "loss")}
    for name, count in steps.items():
        if not isinstance(count, int) or count < 1:
            raise ConfigError(
                f"{key}.{name}.combine_time_steps: {count!r}; expected a whole number of frames, 1 or more"
            )
    if steps["quantizer"] != steps["loss"]:
        raise ConfigError(
            f"{key}.loss.combine_time_steps: {steps['loss']}, but {key}.quantizer.combine_time_steps is "
            f"{steps['quantizer']}; both count the feature frames in one encoder frame"
        )
    pad_to = settings["preprocessor"].get("pad_to", 16)
    if settings["mask_position"] == "pre_conv" and isinstance(pad_to, int) and (pad_to or 1) % steps["loss"]:
        raise ConfigError(
            f"{key}.preprocessor.pad_to: {pad_to} is not a multiple of {key}.loss.combine_time_steps={steps['loss']}; "
            f"set it to {steps['loss']}"
        )


def _check_numerics(settings: Mapping[str, Any], key: str) -> None:
    numerics = settings["numerics"]
    if numerics not in ("exact", "fast"):
        raise ConfigError(f"{key}.numerics: {numerics!r}; expected 'exact' or 'fast'")
    for name in ("batch_norm_over_padding", "compile"):
        if not isinstance(settings[name], bool):
            raise ConfigError(f"{key}.{name}: {settings[name]!r}; expected true or false")
    if not settings["batch_norm_over_padding"] and numerics == "exact":
        raise ConfigError(f"{key}.batch_norm_over_padding: false needs {key}.numerics=fast")
    if settings["compile"] and numerics == "fast":
        raise ConfigError(f"{key}.compile: true needs {key}.numerics=exact; fast does not call the layers to compile")


def _describe_subsampled_frames(nodes: dict[str, dict[str, Any]]) -> None:
    """Let masks and tokens use the frames and features after sub-sampling (NeMo forgets `combine_time_steps`)."""
    encoder = nodes["encoder"]
    factor = encoder.get("subsampling_factor", 4)
    for name in ("quantizer", "masking"):
        nodes[name]["feat_in"] = encoder["d_model"]
    for name in ("quantizer", "loss"):
        nodes[name]["combine_time_steps"] = 1
    nodes["masking"]["block_size"] = max(1, nodes["masking"].get("block_size", 48) // factor)


def _nemo_encoder(node: Mapping[str, Any]) -> nn.Module:
    """Build NeMo's encoder instead of ours (`USE_NEMO_CONFORMER=true`)."""
    try:
        module = importlib.import_module("nemo.collections.asr.modules")
    except ImportError as error:
        raise ConfigError(
            f"USE_NEMO_CONFORMER is set, but NeMo cannot be imported ({error}); install it or unset the variable"
        ) from error
    return module.ConformerEncoder(**{name: value for name, value in node.items() if name != "_target_"})
