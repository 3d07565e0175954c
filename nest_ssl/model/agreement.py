"""Options of different parts that must be equal; otherwise a step fails, or learns something else than intended."""

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


def check_agreement(settings: Node, key: str = "model") -> Iterator[str]:
    """Refuse a `model` node whose parts do not fit together; yield warnings of what works but looks wrong."""
    options = {f"{part}.{name}": value for part in _CLASSES for name, value in all_options(part, settings).items()}
    _check_features(options, settings.get("mask_position"), key)
    _check_equal({name: options[name] for name in _CODEBOOK_COUNTS}, "both count codebooks", key)
    if options["quantizer.num_books"] == 1:  # several are never squeezed
        _check_equal({name: options[name] for name in _SQUEEZED}, "all must agree on the axis of a single book", key)
    if options["quantizer.time_ahead"] is True:
        raise ConfigError(f"{key}.quantizer.time_ahead: true, but the model's features have time last; set it to false")
    _check_masking(options, key)
    codes, classes = options["quantizer.num_classes"], options["decoder.num_classes"]
    if is_whole(codes) and is_whole(classes) and classes < codes:
        raise ConfigError(
            f"{key}.decoder.num_classes: {classes}, but {key}.quantizer.num_classes={codes} makes targets that it "
            f"cannot predict; set it to {codes}"
        )
    if is_whole(codes) and is_whole(classes) and classes > codes:
        yield (
            f"{key}.decoder.num_classes={classes} is more than {key}.quantizer.num_classes={codes}: "
            f"{classes - codes} classes are never a target"
        )


def all_options(part: str, settings: Node) -> dict[str, Any]:
    """Return the options of a part with its class's defaults; a missing one is None, and the class will refuse it."""
    parameters = inspect.signature(_CLASSES[part]).parameters.values()
    defaults = {
        parameter.name: None if parameter.default is inspect.Parameter.empty else parameter.default
        for parameter in parameters
    }
    return {**defaults, **settings[part]}


def _check_features(options: Node, mask_position: Any, key: str) -> None:
    """Check the number of features that each part passes to the next."""
    features, splicing = options["preprocessor.features"], options["preprocessor.frame_splicing"]
    if not (is_whole(features) and is_whole(splicing)):
        return
    made = {"preprocessor.features" + (" x frame_splicing" if splicing > 1 else ""): features * max(1, splicing)}
    takers = ["encoder.feat_in"]
    if mask_position != "post_conv":  # there, both use the features after sub-sampling
        takers += ["masking.feat_in", "quantizer.feat_in"]
    for taker in takers:
        _check_equal({**made, taker: options[taker]}, "both count the features of a frame", key)
    projected = options["encoder.feat_out"]
    width = "encoder.feat_out" if is_whole(projected) and projected > 0 else "encoder.d_model"
    _check_equal(
        {width: options[width], "decoder.feat_in": options["decoder.feat_in"]},
        "both count what the encoder returns",
        key,
    )


def _check_equal(values: Node, why: str, key: str) -> None:
    """Refuse the first value that differs from the first of all."""
    (first, expected), *others = values.items()
    for name, value in others:
        if None not in (value, expected) and value != expected:
            raise ConfigError(f"{key}.{name}: {_shown(value)}, but {key}.{first} is {_shown(expected)}; {why}")


def _check_masking(options: Node, key: str) -> None:
    """Refuse masks without any frame for the loss, which would always be 0."""
    probability, threshold = options["masking.mask_prob"], options["loss.mask_threshold"]
    if probability == 0:
        raise ConfigError(f"{key}.masking.mask_prob: 0 masks nothing, so there is nothing to learn; NEST's is 0.01")
    if isinstance(threshold, int | float) and threshold >= 1:
        raise ConfigError(
            f"{key}.loss.mask_threshold: {threshold}, but a frame counts when more than this share of it is masked; "
            "expected less than 1, such as 0.8"
        )


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, which a boolean is not."""
    return type(value) is int


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
