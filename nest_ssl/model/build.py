"""Build the model's parts from its configuration, in the order in which NeMo draws their random weights."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from torch import nn

from nest_ssl.config.schema import DATA_SETS, ModelSettings, check_values, keys_of, settings_of
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


def build_parts(settings: Mapping[str, Any]) -> Parts:
    """Build the parts that a resolved `model` node describes."""
    check_parts(settings)
    settings = {**MODEL_DEFAULTS, **settings}
    _check_time_steps(settings)
    if torch.get_default_device().type != "meta":  # which allocates nothing
        check_size(settings, machine_memory(), "this machine has")
    nodes = {name: dict(settings[name]) for name in PARTS if settings.get(name) is not None}
    if settings["mask_position"] == "post_conv":
        _describe_subsampled_frames(nodes)

    def build(name: str) -> Any:
        if name == "encoder" and os.environ.get("USE_NEMO_CONFORMER", "").lower() in ("1", "true", "yes"):
            return _nemo_encoder(nodes[name])
        return instantiate(nodes[name], f"model.{name}")

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


def check_parts(settings: Mapping[str, Any]) -> None:
    """Refuse a `model` node with an unknown key, a missing part, or an invalid choice."""
    settings = {**MODEL_DEFAULTS, **settings}
    refuse_unknown(settings, MODEL_KEYS, "model")
    for name in PARTS:
        if name != "spec_augment" and not isinstance(settings.get(name), Mapping):
            raise ConfigError(f"model.{name}: missing; it describes a part of the model")
    check_values({name: settings[name] for name in MODEL_DEFAULTS}, get_type_hints(ModelSettings), "model")
    if not settings["batch_norm_over_padding"] and settings["numerics"] == "exact":
        raise ConfigError("model.batch_norm_over_padding: false needs model.numerics=fast")
    if settings["compile"] and settings["numerics"] == "fast":
        raise ConfigError("model.compile: true needs model.numerics=exact; fast does not call the layers to compile")


def _check_time_steps(settings: Mapping[str, Any]) -> None:
    """Refuse targets of other frames than the loss, and batches that the frames of an encoder frame do not divide."""
    quantizer, loss = (settings[name].get("combine_time_steps", 1) for name in ("quantizer", "loss"))
    for name, count in (("quantizer", quantizer), ("loss", loss)):
        if not isinstance(count, int) or count < 1:
            raise ConfigError(
                f"model.{name}.combine_time_steps: {count!r}; expected a whole number of frames, 1 or more"
            )
    if quantizer != loss:
        raise ConfigError(
            f"model.loss.combine_time_steps: {loss}, but model.quantizer.combine_time_steps is {quantizer}; both count "
            "the feature frames in one encoder frame"
        )
    pad_to = settings["preprocessor"].get("pad_to", 16)
    if settings["mask_position"] == "pre_conv" and isinstance(pad_to, int) and (pad_to or 1) % loss:
        raise ConfigError(
            f"model.preprocessor.pad_to: {pad_to} is not a multiple of model.loss.combine_time_steps={loss}; set it to "
            f"{loss}"
        )


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
