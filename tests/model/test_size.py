"""Absurdly large models are refused before they are made, and the error names the key."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nest_ssl.errors import ConfigError
from nest_ssl.model import ConformerEncoder, MultiSoftmaxDecoder
from nest_ssl.model.build import build_parts
from nest_ssl.model.size import check_size, part_bytes
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

CONFIG = Path(__file__).parents[2] / "config" / "nest_fast-conformer.yaml"
ENCODER = {"feat_in": 80, "n_layers": 3, "d_model": 512, "n_heads": 8}


def model_settings(*overrides: str) -> dict[str, Any]:
    return OmegaConf.to_container(small_config(CONFIG, overrides).model, resolve=True)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 256},
        {"subsampling": "vggnet", "subsampling_factor": 4},
        {"subsampling": "stacking", "subsampling_factor": 8},
        {"subsampling": None},
        {"reduction": "striding", "reduction_factor": 4, "reduction_position": 1},
        {"reduction": "pooling", "reduction_factor": 4, "reduction_position": 1},
        {"ff_expansion_factor": 20},
        {"conv_kernel_size": 5001},
        {"pos_emb_max_len": 100_000},
        {"feat_out": 9000},
        {"n_layers": 40, "d_model": 256},
        {"self_attention_model": "abs_pos"},
    ],
    ids=str,
)
def test_the_estimate_is_close_to_the_size_of_an_encoder(changes: dict[str, Any]) -> None:
    node = {**ENCODER, **changes}
    with torch.device("meta"):
        encoder = ConformerEncoder(**node)
    taken = sum(tensor.numel() * tensor.element_size() for tensor in (*encoder.parameters(), *encoder.buffers()))
    assert 0.95 < part_bytes("encoder", node) / taken < 1.2


def test_the_estimate_equals_the_size_of_a_decoder() -> None:
    node = {"feat_in": 512, "num_classes": 8192, "num_decoders": 3}
    with torch.device("meta"):
        decoder = MultiSoftmaxDecoder(**node)
    assert part_bytes("decoder", node) == 4 * decoder.decoder_layers[0].weight.numel()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder.d_model", 10**9),
        ("encoder.d_model", 10**100),
        ("encoder.ff_expansion_factor", 10**12),
        ("encoder.conv_kernel_size", 10**12 + 1),
        ("encoder.pos_emb_max_len", 10**12),
        ("encoder.feat_in", 10**12),
        ("encoder.feat_out", 10**12),
        ("encoder.subsampling_conv_channels", 10**7),
        ("decoder.feat_in", 10**12),
        ("decoder.num_classes", 10**12),
        ("decoder.num_decoders", 10**12),
        ("quantizer.code_dim", 10**12),
        ("quantizer.num_books", 10**12),
        ("quantizer.num_classes", 10**12),
        ("quantizer.feat_in", 10**12),
        ("quantizer.combine_time_steps", 10**12),
        ("masking.feat_in", 10**13),
        ("preprocessor.features", 10**12),
        ("preprocessor.n_fft", 2**40),
        ("preprocessor.window_size", 1e9),
        ("preprocessor.sample_rate", 10**15),
    ],
)
def test_an_absurd_size_is_refused_with_its_key_before_anything_is_made(key: str, value: Any) -> None:
    node = model_settings()
    part, _, name = key.partition(".")
    node[part][name] = value
    if name == "combine_time_steps":  # the two keys must agree
        node["loss"][name] = value
        node["preprocessor"]["pad_to"] = None
    if name == "sample_rate":
        node[part]["n_fft"] = None
    started = time.process_time()
    with pytest.raises(
        ConfigError, match=rf"^model\.{key}: .* asks for a model of \S+ GB \(\S+ numbers\); this machine has"
    ) as caught:
        build_parts(node)
    assert time.process_time() - started < 5
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder.n_layers", 10**6),
        ("preprocessor.pad_to", 2**40),
        ("preprocessor.frame_splicing", 10**9),
        ("masking.block_size", 10**12),
        ("train_ds.num_workers", 10**6),
    ],
)
def test_a_model_that_takes_forever_to_build_is_refused_too(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.{key}: {value}; expected at most \d+$"):
        build_parts(model_settings(f"model.{key}={value}"))


def test_the_model_class_refuses_absurd_sizes_too() -> None:
    config = small_config(CONFIG, ["model.encoder.d_model=1000000000"]).model
    with pytest.raises(ConfigError, match=r"d_model: 1000000000 asks for a model of .* this machine has"):
        EncDecDenoiseMaskedTokenPredModel(cfg=config)


def test_any_size_can_be_built_without_memory_on_the_meta_device() -> None:
    with torch.device("meta"):
        parts = build_parts(model_settings("model.encoder.d_model=32768"))
    assert sum(p.numel() for p in parts.encoder.parameters()) > 2**34


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())
SETTINGS = model_settings()
keys = [f"{part}.{name}" for part, node in SETTINGS.items() if isinstance(node, dict) for name in node]


@given(key=st.sampled_from(keys), value=anything | st.integers(0, 10**400), most=st.integers(0, 10**30))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_value_crashes_the_check(key: str, value: Any, most: int) -> None:
    part, _, name = key.partition(".")
    node = {**SETTINGS, part: {**SETTINGS[part], name: value}}
    message = ""
    try:
        check_size(node, most, "this machine has")
    except ConfigError as error:
        message = str(error)
    assert "\n" not in message


def test_all_sizes_of_the_paper_are_accepted_on_a_common_machine() -> None:
    for size in ("small", "medium", "large", "xlarge"):
        config = OmegaConf.merge(OmegaConf.load(CONFIG), OmegaConf.load(CONFIG.parent / "size" / f"{size}.yaml"))
        check_size(OmegaConf.to_container(config.model, resolve=True), 4 * 10**9, "")  # type: ignore[arg-type]
