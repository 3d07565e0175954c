"""Options of different parts agree before a run starts; predicted frame rates equal those of real encoders."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nest_ssl.errors import ConfigError
from nest_ssl.model import ConformerEncoder, MultiMLMLoss
from nest_ssl.model.agreement import check_agreement, check_frame_rate, reduction, subsampling
from nest_ssl.testing import small_config

CONFIG = Path(__file__).resolve().parents[2] / "config" / "nest_fast-conformer.yaml"
KINDS = ("dw_striding", "striding", "vggnet", "stacking", "stacking_norm", None)
FEATURES = 8


def _warnings(*overrides: str) -> list[str]:
    settings: Any = OmegaConf.to_container(small_config(CONFIG, overrides).model, resolve=True)
    return list(check_agreement(settings))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("decoder.num_decoders=2", "model.decoder.num_decoders: 2, but model.quantizer.num_books is 1"),
        ("num_books=4 loss.num_decoders=1", "model.loss.num_decoders: 1, but model.quantizer.num_books is 4"),
        ("decoder.squeeze_single=true", "model.decoder.squeeze_single: true, but model.quantizer.squeeze_single is fa"),
        ("decoder.num_classes=32", "model.decoder.num_classes: 32, .* set it to 64"),
        ("masking.feat_in=1", "model.masking.feat_in: 1, but model.preprocessor.features is 80"),
        ("quantizer.feat_in=64", "model.quantizer.feat_in: 64, but model.preprocessor.features is 80"),
        (
            "preprocessor.frame_splicing=2",
            "encoder.feat_in: 80, but .*features x frame_splicing is 160",
        ),
        ("encoder.feat_out=48", "model.decoder.feat_in: 32, but model.encoder.feat_out is 48"),
        ("decoder.feat_in=48", "model.decoder.feat_in: 48, but model.encoder.d_model is 32"),
        ("quantizer.time_ahead=true", "model.quantizer.time_ahead: true"),
        ("masking.mask_prob=0", "model.masking.mask_prob: 0 masks nothing"),
        ("loss.mask_threshold=1.0", "model.loss.mask_threshold: 1.0"),
    ],
)
def test_parts_that_disagree_are_refused(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _warnings(*(f"model.{override}" for override in overrides.split()))


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "num_books=3 loss.squeeze_single=true",  # several codebooks are never squeezed
        "encoder.feat_out=48 decoder.feat_in=48",
        "mask_position=post_conv masking.feat_in=7 quantizer.feat_in=7",  # both take features after sub-sampling
        "preprocessor.frame_splicing=2 encoder.feat_in=160 masking.feat_in=160 quantizer.feat_in=160",
    ],
)
def test_parts_that_agree_are_accepted(overrides: str) -> None:
    assert _warnings(*(f"model.{override}" for override in overrides.split())) == []


def test_classes_that_are_never_a_target_are_reported() -> None:
    assert _warnings("model.decoder.num_classes=100") == [
        "model.decoder.num_classes=100 is more than model.quantizer.num_classes=64: 36 classes are never a target"
    ]


encoders = st.fixed_dictionaries(
    {
        "subsampling": st.sampled_from(KINDS),
        "subsampling_factor": st.integers(1, 17),
        "causal_downsampling": st.booleans(),
        "reduction": st.sampled_from([None, "pooling", "striding"]),
        "reduction_position": st.sampled_from([-1, 0]),
        "reduction_factor": st.integers(1, 6),
    }
)


@cache
def _built(options: tuple[tuple[str, Any], ...]) -> ConformerEncoder | None:
    """Return the smallest encoder with these options, or None if they are not valid."""
    try:
        return ConformerEncoder(feat_in=FEATURES, n_layers=1, d_model=4, n_heads=1, **dict(options)).eval()
    except ValueError:
        return None


@torch.no_grad()
def _frames(encoder: ConformerEncoder, frames: int) -> int:
    return encoder(audio_signal=torch.zeros(1, FEATURES, frames), length=torch.tensor([frames]))[0].shape[2]


def _settings(encoder: dict[str, Any], steps: int) -> dict[str, Any]:
    parts: dict[str, Any] = {name: {} for name in ("masking", "decoder")}
    steps_too = {name: {"combine_time_steps": steps} for name in ("quantizer", "loss")}
    return {**parts, **steps_too, "preprocessor": {"pad_to": steps}, "encoder": encoder}


@given(encoders, st.integers(1, 40))
def test_a_real_encoder_makes_the_predicted_number_of_frames(options: dict[str, Any], multiple: int) -> None:
    encoder = _built(tuple(options.items()))
    if encoder is None:
        return
    rate = subsampling(options) * reduction(options)
    extra = _frames(encoder, multiple * rate) - multiple
    assert extra == 0 or (extra == 1 and options["causal_downsampling"])


@given(encoders, st.sampled_from([1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48]))
def test_the_check_accepts_a_configuration_only_if_the_loss_accepts_every_length(
    options: dict[str, Any], steps: int
) -> None:
    encoder = _built(tuple(options.items()))
    if encoder is None:
        return
    loss = MultiMLMLoss(combine_time_steps=steps)
    shortest = -(-17 * 6 // steps)  # for fewer frames, the output of pooling may be empty
    lengths = [steps * (shortest + more) for more in (0, 1, 2, 3, 5, 8, 13, 40)]
    refused_by_the_loss = []
    for frames in lengths:
        try:
            loss.scored_frames(torch.ones(1, FEATURES, frames), _frames(encoder, frames))
        except ConfigError:
            refused_by_the_loss.append(frames)
    try:
        check_frame_rate(_settings(options, steps))
    except ConfigError:
        assert lengths[-1] in refused_by_the_loss
    else:
        assert not refused_by_the_loss


@pytest.mark.parametrize(
    ("encoder", "steps", "expected"),
    [
        (
            {"subsampling": "dw_striding", "subsampling_factor": 8, "reduction": "pooling", "reduction_factor": 2},
            8,
            "model.loss.combine_time_steps: 8, but model.encoder.subsampling=dw_striding with "
            "model.encoder.subsampling_factor=8 and model.encoder.reduction=pooling with reduction_factor=2 makes one "
            "encoder frame of 16 feature frames, so targets would be shifted in time; set "
            "model.quantizer.combine_time_steps=16 model.loss.combine_time_steps=16 model.preprocessor.pad_to=16",
        ),
        (
            {"subsampling": "dw_striding", "subsampling_factor": 8},
            16,
            "set model.quantizer.combine_time_steps=8 model.loss.combine_time_steps=8",
        ),
        (
            {"subsampling": "striding", "subsampling_factor": 6},
            6,
            "set model.quantizer.combine_time_steps=4 model.loss.combine_time_steps=4 model.preprocessor.pad_to=4, or "
            "a model.encoder.subsampling_factor that is a power of two",
        ),
        (
            {"subsampling": None, "subsampling_factor": 8},
            8,
            "model.quantizer.combine_time_steps=1 model.loss.combine_time_steps=1",
        ),
    ],
)
def test_the_error_names_the_keys_and_valid_values(encoder: dict[str, Any], steps: int, expected: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_frame_rate(_settings(encoder, steps))
    assert str(refusal.value).endswith(expected)


def test_post_conv_masking_accepts_any_time_steps_but_no_reduction() -> None:
    settings = _settings({"subsampling_factor": 8}, steps=3) | {"mask_position": "post_conv"}
    check_frame_rate(settings)
    settings["encoder"] |= {"reduction": "pooling", "reduction_factor": 2}
    with pytest.raises(ConfigError, match=r"set model\.encoder\.reduction=null or model\.mask_position=pre_conv"):
        check_frame_rate(settings)
