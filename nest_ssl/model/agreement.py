"""Options of different parts that must agree; otherwise a step fails, or learns something else than intended."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from nest_ssl.errors import ConfigError
from nest_ssl.model import (
    AudioToMelSpectrogramPreprocessor,
    ConformerEncoder,
    MultiMLMLoss,
    MultiSoftmaxDecoder,
    RandomBlockMasking,
    RandomProjectionVectorQuantizer,
)
from nest_ssl.model.conformer.subsampling import CONV_KINDS

Node = Mapping[str, Any]
_CLASSES = {
    "preprocessor": AudioToMelSpectrogramPreprocessor,
    "masking": RandomBlockMasking,
    "quantizer": RandomProjectionVectorQuantizer,
    "encoder": ConformerEncoder,
    "decoder": MultiSoftmaxDecoder,
    "loss": MultiMLMLoss,
}
_CODEBOOK_COUNTS = ("quantizer.num_books", "decoder.num_decoders", "loss.num_decoders")
_SQUEEZED = ("quantizer.squeeze_single", "decoder.squeeze_single", "loss.squeeze_single")


def all_options(part: str, node: Node) -> dict[str, Any]:
    """Return the options of a part with its class's defaults; a missing one is None, and the class will refuse it."""
    parameters = inspect.signature(_CLASSES[part]).parameters.values()
    empty = inspect.Parameter.empty
    return {**{each.name: None if each.default is empty else each.default for each in parameters}, **node}


def check_agreement(settings: Node) -> Iterator[str]:
    """Refuse a `model` node whose parts do not fit together; yield warnings of what works but looks wrong.

    Invalid options are refused later, by the part itself.
    """
    parts = {part: all_options(part, settings[part]) for part in _CLASSES}
    options = {f"{part}.{name}": value for part, node in parts.items() for name, value in node.items()}
    check_frame_rate(settings)
    _check_features(options, settings.get("mask_position"))
    _check_equal({name: options[name] for name in _CODEBOOK_COUNTS}, "both count codebooks")
    if options["quantizer.num_books"] == 1:  # several are never squeezed
        _check_equal({name: options[name] for name in _SQUEEZED}, "all must agree on the axis of a single book")
    if options["quantizer.time_ahead"] is True:
        raise ConfigError("model.quantizer.time_ahead: true, but the model's features have time last; set it to false")
    _check_masking(options)
    yield from _check_classes(options["quantizer.num_classes"], options["decoder.num_classes"])


def check_frame_rate(settings: Node) -> None:
    """Refuse a `model` node whose targets have another frame rate than its encoder: they would be shifted in time."""
    encoder = all_options("encoder", settings["encoder"])
    after = reduction(encoder)
    reduced = f"model.encoder.reduction={encoder['reduction']} with reduction_factor={encoder['reduction_factor']}"
    if settings.get("mask_position") == "post_conv":
        if after != 1:
            raise ConfigError(
                f"model.mask_position: post_conv masks and targets the frames of the sub-sampling, of which {reduced} "
                f"leaves one in {after}; set model.encoder.reduction=null or model.mask_position=pre_conv"
            )
        return
    steps = all_options("loss", settings["loss"])["combine_time_steps"]
    frames = subsampling(encoder) * after
    if steps != frames:
        cause = f"model.encoder.subsampling={encoder['subsampling'] or 'null'}"
        if encoder["subsampling"]:
            cause += f" with model.encoder.subsampling_factor={encoder['subsampling_factor']}"
        cause += f" and {reduced}" if after != 1 else ""
        raise ConfigError(
            f"model.loss.combine_time_steps: {steps}, but {cause} makes one encoder frame of {frames} feature frames, "
            f"so targets would be shifted in time; set {_right_frame_rate(encoder, settings['preprocessor'], frames)}"
        )


def _right_frame_rate(encoder: Node, preprocessor: Node, frames: int) -> str:
    """Return the overrides that make the targets' frame rate the encoder's."""
    pad_to = all_options("preprocessor", preprocessor)["pad_to"]
    keys = ["quantizer.combine_time_steps", "loss.combine_time_steps"]
    keys += ["preprocessor.pad_to"] if not is_whole(pad_to) or (pad_to or 1) % frames else []
    overrides = " ".join(f"model.{key}={frames}" for key in keys)
    factor = encoder["subsampling_factor"]
    if encoder["subsampling"] in CONV_KINDS and factor != _power_of_two(factor):
        overrides += ", or a model.encoder.subsampling_factor that is a power of two"
    return overrides


def subsampling(encoder: Node) -> int:
    """Return how many feature frames the sub-sampling of an `encoder` node, with all its options, makes one frame."""
    return _rate(encoder["subsampling"], encoder["subsampling_factor"])


def reduction(encoder: Node) -> int:
    """Return how many frames after the sub-sampling become one frame of the encoder's output."""
    return _rate(encoder["reduction"], encoder["reduction_factor"])


def _rate(kind: str | None, factor: Any) -> int:
    """Return the frames that become one; convolutions of stride 2 achieve the largest power of two up to the factor."""
    if not kind or not is_whole(factor) or factor <= 1:
        return 1
    return factor if kind in ("stacking", "stacking_norm", "pooling") else _power_of_two(factor)


def _power_of_two(factor: int) -> int:
    return 1 << (factor.bit_length() - 1)


def _check_features(options: Node, mask_position: Any) -> None:
    """Check the number of features that each part passes to the next."""
    features, splicing = options["preprocessor.features"], options["preprocessor.frame_splicing"]
    if not (is_whole(features) and is_whole(splicing)):
        return
    made = {"preprocessor.features" + (" x frame_splicing" if splicing > 1 else ""): features * max(1, splicing)}
    takers = ["encoder.feat_in"]
    if mask_position != "post_conv":  # there, both use the features after sub-sampling
        takers += ["masking.feat_in", "quantizer.feat_in"]
    _check_equal({**made, **{taker: options[taker] for taker in takers}}, "both count the features of a frame")
    projected = options["encoder.feat_out"]
    width = "encoder.feat_out" if is_whole(projected) and projected > 0 else "encoder.d_model"
    _check_equal({name: options[name] for name in (width, "decoder.feat_in")}, "both count what the encoder returns")


def _check_equal(values: Node, why: str) -> None:
    """Refuse the first value that differs from the first of all."""
    (first, expected), *others = values.items()
    for name, value in others:
        if None not in (value, expected) and value != expected:
            raise ConfigError(f"model.{name}: {_shown(value)}, but model.{first} is {_shown(expected)}; {why}")


def _check_masking(options: Node) -> None:
    """Refuse masks without any frame for the loss, which would always be 0."""
    if options["masking.mask_prob"] == 0:
        raise ConfigError("model.masking.mask_prob: 0 masks nothing, so there is nothing to learn; NEST's is 0.01")
    threshold = options["loss.mask_threshold"]
    if isinstance(threshold, int | float) and threshold >= 1:
        raise ConfigError(
            f"model.loss.mask_threshold: {threshold}, but a frame counts when more than this share of it is masked; "
            "expected less than 1, such as 0.8"
        )


def _check_classes(codes: Any, classes: Any) -> Iterator[str]:
    """Refuse a decoder that cannot predict some targets; warn of one with classes that are never a target."""
    if not (is_whole(codes) and is_whole(classes)):
        return
    if classes < codes:
        raise ConfigError(
            f"model.decoder.num_classes: {classes}, but model.quantizer.num_classes={codes} makes targets that it "
            f"cannot predict; set it to {codes}"
        )
    if classes > codes:
        yield (
            f"model.decoder.num_classes={classes} is more than model.quantizer.num_classes={codes}: "
            f"{classes - codes} classes are never a target"
        )


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, which a boolean is not."""
    return type(value) is int


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
