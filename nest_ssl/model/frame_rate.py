"""How many feature frames become one encoder frame; targets that count otherwise would be shifted in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nest_ssl.errors import ConfigError
from nest_ssl.model.agreement import all_options, is_whole
from nest_ssl.model.conformer.subsampling import CONV_KINDS

Node = Mapping[str, Any]
_STACKING = ("stacking", "stacking_norm")


def check_frame_rate(settings: Node, key: str = "model") -> None:
    """Refuse a `model` node whose targets and masks count other frames than its encoder makes.

    What is no valid option at all is left to the part to refuse.
    """
    encoder = all_options("encoder", settings)
    if settings.get("mask_position") == "post_conv":
        if reduction(encoder) != 1:
            raise ConfigError(
                f"{key}.mask_position: post_conv masks and targets the frames of the sub-sampling, of which "
                f"{_reduction_keys(encoder, key)} leaves one in {reduction(encoder)}; set {key}.encoder.reduction=null "
                f"or {key}.mask_position=pre_conv"
            )
        return
    steps = all_options("loss", settings)["combine_time_steps"]
    frames = subsampling(encoder) * reduction(encoder)
    if steps != frames:
        raise ConfigError(
            f"{key}.loss.combine_time_steps: {steps}, but {_cause(encoder, key)} makes one encoder frame of {frames} "
            f"feature frames, so targets would be shifted in time; set {_remedy(settings, key, frames)}"
        )


def subsampling(encoder: Node) -> int:
    """Feature frames in one frame after the sub-sampling of an `encoder` node with all its options."""
    kind, factor = encoder["subsampling"], encoder["subsampling_factor"]
    if not kind or not is_whole(factor) or factor <= 1:
        return 1
    return factor if kind in _STACKING else _power_of_two(factor)


def reduction(encoder: Node) -> int:
    """Frames after the sub-sampling in one frame that the encoder returns."""
    kind, factor = encoder["reduction"], encoder["reduction_factor"]
    if not kind or not is_whole(factor) or factor <= 1:
        return 1
    return factor if kind == "pooling" else _power_of_two(factor)


def _power_of_two(factor: int) -> int:
    """What convolutions of stride 2 make of a factor: they halve as often as a whole number of them fits."""
    return 1 << (factor.bit_length() - 1)


def _cause(encoder: Node, key: str) -> str:
    kind = encoder["subsampling"]
    keys = f"{key}.encoder.subsampling={kind if kind else 'null'}"
    if kind:
        keys += f" with {key}.encoder.subsampling_factor={encoder['subsampling_factor']}"
    return keys if reduction(encoder) == 1 else f"{keys} and {_reduction_keys(encoder, key)}"


def _reduction_keys(encoder: Node, key: str) -> str:
    return f"{key}.encoder.reduction={encoder['reduction']} with reduction_factor={encoder['reduction_factor']}"


def _remedy(settings: Node, key: str, frames: int) -> str:
    keys = [f"{key}.quantizer.combine_time_steps={frames}", f"{key}.loss.combine_time_steps={frames}"]
    pad_to = all_options("preprocessor", settings)["pad_to"]
    if not is_whole(pad_to) or (pad_to or 1) % frames:
        keys.append(f"{key}.preprocessor.pad_to={frames}")
    remedy = " ".join(keys)
    encoder = all_options("encoder", settings)
    factor = encoder["subsampling_factor"]
    if encoder["subsampling"] in CONV_KINDS and factor != _power_of_two(factor):
        remedy += f", or a {key}.encoder.subsampling_factor that is a power of two"
    return remedy
