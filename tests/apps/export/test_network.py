"""The network that is exported computes the same as the model."""

from __future__ import annotations

import pytest
import torch

from nest_ssl.apps.export.check import difference
from nest_ssl.apps.export.interface import Interface, encode_eagerly
from nest_ssl.apps.export.network import Kind, exportable
from nest_ssl.errors import NestError
from tests.apps.export.saved_models import small_model

CAUSAL = ["model.encoder.causal_downsampling=true", "model.encoder.conv_context_size=causal"]
CHUNKED = ["model.encoder.att_context_style=chunked_limited", "model.encoder.att_context_size=[8,3]"]
POOLED = ["model.encoder.reduction=pooling", "model.encoder.reduction_factor=2", "model.encoder.reduction_position=0"]
STRIDED = [
    "model.encoder.reduction=striding",
    "model.encoder.reduction_factor=2",
    "model.encoder.reduction_position=-1",
]
FUSED = ["model.encoder.use_pytorch_sdpa=true", "model.encoder.use_pytorch_sdpa_backends=[MATH]"]


@pytest.mark.parametrize("kind", ["audio", "features"])
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model.encoder.self_attention_model=abs_pos", "model.encoder.subsampling=stacking_norm"],
        [*CAUSAL, *CHUNKED, "model.encoder.conv_norm_type=layer_norm"],
        ["model.encoder.subsampling=vggnet", *POOLED],
        ["model.encoder.subsampling=striding", *STRIDED, "model.encoder.untie_biases=false"],
        [*FUSED, "model.encoder.att_context_size=[4,2]", "model.mask_position=post_conv"],
        ["model.encoder.feat_out=24", "model.encoder.xscaling=false", "model.encoder.pos_emb_max_len=20"],
    ],
    ids=["usual", "absolute", "causal", "vggnet", "striding", "fused", "projected"],
)
def test_every_kind_of_encoder_gives_the_models_numbers(overrides: list[str], kind: Kind) -> None:
    model = small_model(*overrides)
    interface = Interface.of(model, kind)
    x, lengths = interface.batch([interface.steps(3.1), interface.shortest], torch.Generator().manual_seed(0))
    with torch.no_grad():
        encoded = exportable(model, kind)(x, lengths)
    assert difference(encoded, encode_eagerly(model, interface, x, lengths)) < 1e-4


def test_the_model_is_left_as_it_was() -> None:
    model = small_model("model.mask_position=post_conv")
    before = {name: type(module) for name, module in model.named_modules()}
    exportable(model, "audio")
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("setting", ["normalize: all_features", "exact_pad: true"])
def test_a_log_mel_that_cannot_be_exported_is_named_with_the_way_out(setting: str) -> None:
    model = small_model(f"model.preprocessor.{setting.replace(': ', '=')}")
    with pytest.raises(NestError, match=f"model.preprocessor.{setting} cannot be exported; use --input features"):
        exportable(model, "audio")
    exportable(model, "features")
