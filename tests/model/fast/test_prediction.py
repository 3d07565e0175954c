"""`fast` computes the same loss, gradients and statistics as `exact`, for all batches and options."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nest_ssl.model import ConformerEncoder
from nest_ssl.model.fast import attention, encoder
from tests.model.fast.conftest import NOTHING_RANDOM, Step, build, fix_mask, make_batch, take_step

OPTIONS = {
    "default": [],
    "striding": ["model.encoder.subsampling=striding"],
    "striding_4": [
        "model.encoder.subsampling_factor=4",
        *("model.quantizer.combine_time_steps=4", "model.loss.combine_time_steps=4"),
    ],
    "striding_16": [
        "model.encoder.subsampling_factor=16",
        *("model.quantizer.combine_time_steps=16", "model.loss.combine_time_steps=16"),
    ],
    "in_chunks": ["model.encoder.subsampling_conv_chunking_factor=2"],
    "channels": ["model.encoder.subsampling_conv_channels=24"],
    "vggnet": ["model.encoder.subsampling=vggnet"],
    "no_subsampling": [
        *("model.encoder.subsampling_factor=1", "model.quantizer.combine_time_steps=1"),
        *("model.loss.combine_time_steps=1", "model.preprocessor.pad_to=1"),
    ],
    "causal_downsampling": ["model.encoder.causal_downsampling=true"],
    "abs_pos": ["model.encoder.self_attention_model=abs_pos"],
    "context": ["model.encoder.att_context_size=[8,4]"],
    "several_contexts": ["model.encoder.att_context_size=[[8,4],[4,2]]"],
    "chunked": ["model.encoder.att_context_style=chunked_limited", "model.encoder.att_context_size=[8,3]"],
    "sdpa": ["model.encoder.use_pytorch_sdpa=true"],
    "tied_biases": ["model.encoder.untie_biases=false"],
    "no_bias": ["model.encoder.use_bias=false"],
    "no_xscaling": ["model.encoder.xscaling=false"],
    "layer_norm": ["model.encoder.conv_norm_type=layer_norm"],
    "fused_batch_norm": ["model.encoder.conv_norm_type=fused_batch_norm"],
    "kernel_5": ["model.encoder.conv_kernel_size=5"],
    "wide_feed_forward": ["model.encoder.ff_expansion_factor=2"],
    "causal_convolution": ["model.encoder.conv_context_size=causal"],
    "uneven_convolution": ["model.encoder.conv_context_size=[5,3]"],
    "feat_out": ["model.encoder.feat_out=48", "model.decoder.feat_in=48"],
    "stochastic_depth": ["model.encoder.stochastic_depth_drop_prob=0.5"],
    "stochastic_depth_uniform": [
        *("model.encoder.stochastic_depth_drop_prob=0.5", "model.encoder.stochastic_depth_mode=uniform"),
    ],
    "learned_mask": ["model.masking.freeze=false"],
    "two_books": ["model.num_books=2"],
    "squeezed": ["model.squeeze_single=true"],
    "cosine": ["model.quantizer.dist_fn=cosine"],
    "separate_blocks": ["model.masking.allow_overlap=false", "model.masking.mask_prob=0.4"],
    "all_features": ["model.preprocessor.normalize=all_features"],
    "not_normalised": ["model.preprocessor.normalize=null"],
    "magnitude": ["model.preprocessor.mag_power=1.0"],
    "exact_pad": ["model.preprocessor.exact_pad=true"],
    "clamped_log": ["model.preprocessor.log_zero_guard_type=clamp"],
}
LENGTHS = (40000, 61234, 8000, 30001)
TINY = torch.finfo(torch.float64).tiny
# arguments of the encoder that no option above sets, with the reasons
NOT_VARIED = {
    *(
        "feat_in",
        "d_model",
        "n_layers",
        "n_heads",
        "dropout",
        "dropout_pre_encoder",
        "dropout_emb",
        "dropout_att",
    ),  # sizes
    *("reduction", "reduction_position", "reduction_factor"),  # `exact` is used for these
    *("pos_emb_max_len", "pos_bias_max_len", "sync_max_audio_length", "use_pytorch_sdpa_backends"),  # no effect here
    *("att_context_probs", "stochastic_depth_start_layer"),  # set together with other arguments
    *("conv_context_style", "att_chunk_context_size", "global_tokens", "global_tokens_spacing", "global_attn_separate"),
}


def both(
    overrides: list[str], lengths: tuple[int, ...] = LENGTHS, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Step]:
    """Compute the same step with both numerics; overrides take precedence over the defaults of this file."""
    batch, steps = make_batch(lengths, seed), []
    for numerics in ("exact", "fast"):
        model = build(numerics, [*NOTHING_RANDOM, *overrides], seed)
        assert model.fast == (numerics == "fast")
        fix_mask(model, seed)
        steps.append(take_step(model, batch, dtype))
    return steps


def largest_error(exact: Step, fast: Step) -> float:
    """Return the largest difference of a gradient, as a share of the largest gradient of its tensor.

    If the true gradient of a tensor is zero (a bias before a norm), its gradient is only rounding noise:
    it counts as a share of the largest of all gradients. Without a masked frame, all gradients are zero.
    """
    assert list(exact.gradients) == list(fast.gradients)
    of_all = max(float(gradient.abs().max()) for gradient in exact.gradients.values())
    return max(
        float((gradient - fast.gradients[name]).abs().max()) / max(float(gradient.abs().max()), 1e-6 * of_all, TINY)
        for name, gradient in exact.gradients.items()
    )


def check_same(exact: Step, fast: Step) -> None:
    """Check in float64 that gradients agree to 1e-9 of the largest of their tensor, or of all, if they are rounding."""
    assert fast.loss == pytest.approx(exact.loss, rel=1e-12)
    for name, buffer in exact.buffers.items():
        torch.testing.assert_close(fast.buffers[name], buffer, rtol=1e-9, atol=1e-12)
    noise = ("linear_k.bias", "depthwise_conv.bias")
    true = {name: g for name, g in exact.gradients.items() if not name.endswith(noise)}
    assert largest_error(Step(0, true, {}), Step(0, {name: fast.gradients[name] for name in true}, {})) < 1e-9
    of_all = max(float(gradient.abs().max()) for gradient in exact.gradients.values())
    for name, gradient in exact.gradients.items():
        assert float((gradient - fast.gradients[name]).abs().max()) <= 1e-9 * of_all, name


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_gives_the_same_step(option: str) -> None:
    exact, fast = both(OPTIONS[option], dtype=torch.float64)
    assert len(exact.gradients) > 50
    assert exact.loss > 0
    check_same(exact, fast)


def test_every_argument_of_the_encoder_is_among_the_options() -> None:
    varied = {override.split("=")[0].split(".")[-1] for overrides in OPTIONS.values() for override in overrides}
    arguments = set(inspect.signature(ConformerEncoder).parameters)
    assert arguments - varied - NOT_VARIED == set()


@given(
    option=st.sampled_from(sorted(OPTIONS)),
    lengths=st.lists(st.integers(0, 50000), min_size=1, max_size=5),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_batch_gives_the_same_step(option: str, lengths: list[int], seed: int) -> None:
    exact, fast = both(OPTIONS[option], (*lengths, 20000), torch.float64, seed)
    check_same(exact, fast)


@pytest.mark.parametrize("lengths", [(0,), (100, 159), (160,), (40000, 0, 100)])
def test_very_short_utterances_give_the_same_step(lengths: tuple[int, ...]) -> None:
    exact, fast = both([], lengths)
    assert fast.loss == pytest.approx(exact.loss, rel=1e-6)


@pytest.mark.parametrize("option", ["default", "striding", "abs_pos", "layer_norm", "two_books", "not_normalised"])
def test_in_single_precision_fast_is_as_close_to_float64_as_exact(option: str) -> None:
    truth, _ = both(OPTIONS[option], dtype=torch.float64)
    exact, fast = both(OPTIONS[option])
    assert fast.loss == pytest.approx(exact.loss, rel=1e-6)
    size = sum(float(gradient.square().sum()) for gradient in truth.gradients.values()) ** 0.5
    assert exact.distance(truth) < 1e-3 * size  # both computed the same step
    assert fast.distance(truth) < 1.5 * exact.distance(truth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_fast_is_as_close_to_float64_as_exact(dtype: torch.dtype) -> None:
    truth, _ = both([])
    distances = {}
    for numerics in ("exact", "fast"):
        model = build(numerics, NOTHING_RANDOM)
        fix_mask(model)
        with torch.autocast("cpu", dtype=dtype):
            step = take_step(model, make_batch(LENGTHS))
        assert step.loss == pytest.approx(truth.loss, rel=0.02)
        assert all(gradient.isfinite().all() for gradient in step.gradients.values())
        assert model.encoder.pos_enc.pe.dtype == torch.float32
        distances[numerics] = step.distance(truth)
    assert distances["fast"] < 1.5 * distances["exact"]


def test_evaluation_is_the_same_too() -> None:
    batch = make_batch(LENGTHS)
    losses = []
    for numerics in ("exact", "fast"):
        model = build(numerics)
        take_step(model, batch)  # so that batch norm has running statistics
        torch.manual_seed(3)
        with torch.no_grad():
            losses.append(model.eval().predict_masked(batch).loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_attention_of_all_utterances_together_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU computes attention in the way that is used on a GPU."""
    for option in ("default", "abs_pos", "context"):
        batch = make_batch(LENGTHS)
        overrides = [*NOTHING_RANDOM, *OPTIONS[option]]
        one = take_step(build("fast", overrides), batch, torch.float64)
        with monkeypatch.context() as patch:
            patch.setattr(encoder.AttentionMask, "of", partial(attention.AttentionMask.of, together=True))
            all_of_them = take_step(build("fast", overrides), batch, torch.float64)
        assert all_of_them.loss == pytest.approx(one.loss, rel=1e-12)
        assert largest_error(one, all_of_them) < 1e-7


def test_padding_costs_nothing_and_changes_nothing_but_batch_norm() -> None:
    """With `batch_norm_over_padding: false`, the loss of an utterance does not depend on the length of its batch."""
    overrides = [*NOTHING_RANDOM, "model.batch_norm_over_padding=false"]
    short = make_batch((30000, 30000))
    long = make_batch((30000, 30000))
    for name in ("audio", "noise", "noisy_audio"):
        setattr(long, name, torch.nn.functional.pad(getattr(short, name), (0, 60000)))
    model = build("fast", overrides)
    mask = torch.zeros(2, 1000, dtype=torch.bool)
    mask[:, 40:88] = True
    model.mask_processor.blocks = lambda lengths, frames: mask[:, :frames]  # type: ignore[method-assign]
    losses = [take_step(model, batch, torch.float64).loss for batch in (short, long)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-8)


def test_a_batch_without_masks_has_zero_loss_and_gradients() -> None:
    step = take_step(build("fast", ["model.masking.mask_prob=0"]), make_batch((20000, 30000)))
    assert step.loss == 0
    assert all((gradient == 0).all() for gradient in step.gradients.values())
    assert len(step.gradients) > 50


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("model.mask_position=post_conv", "model.mask_position=post_conv"),
        ("model.encoder.conv_norm_type=group_norm4", "model.encoder.conv_norm_type"),
        ("model.encoder.conv_norm_type=instance_norm", "model.encoder.conv_norm_type"),
        ("model.encoder.subsampling=stacking", "model.encoder.subsampling"),
        ("model.preprocessor.pad_value=1.5", "model.preprocessor.pad_value"),
        (
            "model.loss.combine_time_steps=4 model.quantizer.combine_time_steps=4",
            "model.loss.combine_time_steps=4 with model.encoder.subsampling_factor=8",
        ),
    ],
)
def test_exact_is_used_for_options_that_fast_lacks(
    overrides: str, named: str, caplog: pytest.LogCaptureFixture, our_messages: Callable[[], list[str]]
) -> None:
    with caplog.at_level(logging.WARNING):
        model = build("fast", overrides.split())
    assert our_messages() == [f"model.numerics: fast cannot do {named}; training with exact"]
    assert not model.fast


def test_both_numerics_have_the_same_checkpoints() -> None:
    exact, fast = build("exact"), build("fast")
    assert list(exact.state_dict()) == list(fast.state_dict())
    fast.load_state_dict(exact.state_dict())


DROPOUT = [
    f"model.encoder.dropout{part}={p}" for part, p in (("", 0.1), ("_pre_encoder", 0.2), ("_emb", 0.3), ("_att", 0.4))
]


def steps_with_dropout_told_apart(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Replace each dropout by a factor that shows its probability and how often it was applied."""
    monkeypatch.setattr(nn.Dropout, "forward", lambda module, x: x * (1 + module.p))
    for part in (encoder, attention):
        monkeypatch.setattr(part, "drop", lambda x, module: module(x))
    return both(["model.preprocessor.dither=0", *DROPOUT], dtype=torch.float64)


def test_dropout_is_applied_where_exact_applies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, fast = steps_with_dropout_told_apart(monkeypatch)
    check_same(exact, fast)
    without, _ = both([], dtype=torch.float64)
    assert abs(exact.loss - without.loss) > 1e-3  # the factors have an effect


def test_dropout_gives_the_same_loss_on_average() -> None:
    batch = make_batch((20000, 26000))
    losses = {}
    for numerics in ("exact", "fast"):
        model = build(numerics, ["model.encoder.dropout=0.3", "model.encoder.dropout_att=0.3"])
        fix_mask(model)
        torch.manual_seed(5)
        with torch.no_grad():
            losses[numerics] = torch.stack([model.predict_masked(batch).loss for _ in range(200)])
    error = (losses["exact"].var() / 200 + losses["fast"].var() / 200).sqrt()
    assert abs(losses["exact"].mean() - losses["fast"].mean()) < 4 * error
    assert losses["fast"].std() / losses["exact"].std() == pytest.approx(1, abs=0.3)


def test_training_with_both_numerics_gives_similar_losses() -> None:
    """In 200 steps with dropout and dither, random numbers differ, but the losses fall in the same way."""
    batches = [make_batch((20000, 26000), seed) for seed in range(4)]
    curves = {}
    for numerics in ("exact", "fast"):
        model = build(numerics)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        losses = []
        for step in range(200):
            losses.append(take_step(model, batches[step % 4], seed=step).loss)
            optimizer.step()
        curves[numerics] = torch.tensor(losses).view(4, 50)
    exact, fast = curves["exact"], curves["fast"]
    assert fast[-1].mean() < fast[0].mean() - 0.2  # it learns
    for theirs, ours in zip(exact, fast, strict=True):
        error = ((theirs.var() + ours.var()) / 50).sqrt()
        assert abs(theirs.mean() - ours.mean()) < 4 * error
