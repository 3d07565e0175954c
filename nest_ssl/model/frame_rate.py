"""The number of feature frames in one encoder frame; with another number, targets would be shifted in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nest_ssl.errors import ConfigError
from nest_ssl.model.agreement import all_options, is_whole
from nest_ssl.model.conformer.subsampling import CONV_KINDS

Node = Mapping[str, Any]
_STACKING = ("stacking", "stacking_norm")


def check_frame_rate(settings: Node, key: str = "model") -> None:
    """Refuse a `model` node whose targets have another frame rate than its encoder.

    Invalid options are refused later, by the part itself.
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
    """Return how many feature frames the sub-sampling of an `encoder` node, with all its options, makes one frame."""
    kind, factor = encoder["subsampling"], encoder["subsampling_factor"]
    if not kind or not is_whole(factor) or factor <= 1:
        return 1
    return factor if kind in _STACKING else _power_of_two(factor)


def reduction(encoder: Node) -> int:
    """Return how many frames after the sub-sampling become one frame of the encoder's output."""
    kind, factor = encoder["reduction"], encoder["reduction_factor"]
    if not kind or not is_whole(factor) or factor <= 1:
        return 1
    return factor if kind == "pooling" else _power_of_two(factor)


def _power_of_two(factor: int) -> int:
    """Return the factor that convolutions of stride 2 achieve: the largest power of two up to it."""
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
