"""Options of different parts that count the same thing must agree before a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nest_ssl.errors import ConfigError
from nest_ssl.model.agreement import check_agreement
from nest_ssl.testing import small_config

CONFIG = Path(__file__).resolve().parents[2] / "config" / "nest_fast-conformer.yaml"


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
