"""The encoder: sub-sampling, positions, a stack of Conformer blocks."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nest_ssl.model.conformer.attention import (
    MultiHeadAttention,
    RelPositionMultiHeadAttention,
    position_biases,
)
from nest_ssl.model.conformer.context import AttentionContext, attention_contexts, convolution_context
from nest_ssl.model.conformer.convolution import ConformerConvolution
from nest_ssl.model.conformer.feed_forward import ConformerFeedForward
from nest_ssl.model.conformer.layer import ConformerLayer
from nest_ssl.model.conformer.positions import PositionalEncoding, RelPositionalEncoding
from nest_ssl.model.conformer.subsampling import (
    CONV_KINDS,
    ConvSubsampling,
    StackingSubsampling,
    SubsamplingReductionModule,
)


class ConformerEncoder(nn.Module):
    """Features (B, D, T) to encoded frames (B, D, U). Arguments, defaults and parameter names are NeMo's."""

    def __init__(
        self,
        feat_in: int,
        n_layers: int,
        d_model: int,
        feat_out: int = -1,
        causal_downsampling: bool = False,
        subsampling: Literal["dw_striding", "striding", "vggnet", "stacking", "stacking_norm"] | None = "striding",
        subsampling_factor: int = 4,
        subsampling_conv_chunking_factor: int = 1,
        subsampling_conv_channels: int = -1,
        reduction: Literal["pooling", "striding"] | None = None,
        reduction_position: int | None = None,
        reduction_factor: int = 1,
        ff_expansion_factor: int = 4,
        self_attention_model: Literal["rel_pos", "abs_pos"] = "rel_pos",
        n_heads: int = 4,
        att_context_size: Sequence[int] | Sequence[Sequence[int]] | None = None,
        att_context_probs: Sequence[float] | None = None,
        att_chunk_context_size: None = None,
        att_context_style: Literal["regular", "chunked_limited"] = "regular",
        xscaling: bool = True,
        untie_biases: bool = True,
        pos_emb_max_len: int = 5000,
        conv_kernel_size: int = 31,
        conv_norm_type: str = "batch_norm",
        conv_context_size: Sequence[int] | Literal["causal"] | None = None,
        conv_context_style: Literal["regular"] = "regular",
        use_bias: bool = True,
        dropout: float = 0.1,
        dropout_pre_encoder: float = 0.1,
        dropout_emb: float = 0.1,
        dropout_att: float = 0.0,
        stochastic_depth_drop_prob: float = 0.0,
        stochastic_depth_mode: Literal["linear", "uniform"] = "linear",
        stochastic_depth_start_layer: int = 1,
        global_tokens: int = 0,
        global_tokens_spacing: int = 1,
        global_attn_separate: bool = False,
        use_pytorch_sdpa: bool = False,
        use_pytorch_sdpa_backends: Sequence[str] | None = None,
        sync_max_audio_length: bool = True,  # accepted and ignored: positions need no synchronisation
    ) -> None:
        super().__init__()
        _refuse_unsupported(
            self_attention_model, att_context_style, conv_context_style, att_chunk_context_size, global_tokens
        )
        self.contexts: list[AttentionContext] = attention_contexts(att_context_size, att_context_style)
        self.context_probabilities = _probabilities(att_context_probs, len(self.contexts))
        conv_context = convolution_context(conv_context_size, conv_kernel_size)
        xscale = math.sqrt(d_model) if xscaling else None

        self.subsampling_factor = subsampling_factor
        self.pre_encode = _subsampling(
            subsampling,
            subsampling_factor,
            feat_in,
            d_model,
            d_model if subsampling_conv_channels == -1 else subsampling_conv_channels,
            subsampling_conv_chunking_factor,
            causal_downsampling,
        )
        self.reduction_position: int | None = None
        if reduction and reduction_factor > 1:
            if reduction_position is None or not -1 <= reduction_position < n_layers:
                raise ValueError(
                    f"reduction_position is {reduction_position}; expected -1 (after all layers) or a layer"
                )
            self.reduction_position = reduction_position
            self.reduction_subsampling = SubsamplingReductionModule(reduction, d_model, reduction_factor)

        relative = self_attention_model == "rel_pos"
        self.pos_enc: PositionalEncoding = (
            RelPositionalEncoding(d_model, dropout_pre_encoder, xscale, dropout_emb)
            if relative
            else PositionalEncoding(d_model, dropout_pre_encoder, xscale)
        )
        shared_biases = None if untie_biases else position_biases(n_heads, d_model // n_heads)

        def attention() -> MultiHeadAttention:
            backends = use_pytorch_sdpa_backends or ()
            if relative:
                return RelPositionMultiHeadAttention(
                    n_heads, d_model, dropout_att, use_bias, use_pytorch_sdpa, backends, shared_biases
                )
            return MultiHeadAttention(n_heads, d_model, dropout_att, use_bias, use_pytorch_sdpa, backends)

        d_ff = d_model * ff_expansion_factor
        self.layers = nn.ModuleList(
            ConformerLayer(
                d_model,
                dropout,
                feed_forward1=ConformerFeedForward(d_model, d_ff, dropout, use_bias),
                conv=ConformerConvolution(d_model, conv_kernel_size, conv_norm_type, conv_context, use_bias),
                self_attn=attention(),
                feed_forward2=ConformerFeedForward(d_model, d_ff, dropout, use_bias),
            )
            for _ in range(n_layers)
        )
        self.out_proj = nn.Linear(d_model, feat_out) if feat_out > 0 and feat_out != d_model else None
        self.drop_probabilities = stochastic_depth(
            n_layers, stochastic_depth_drop_prob, stochastic_depth_mode, stochastic_depth_start_layer
        )
        self.pos_enc.extend(pos_emb_max_len, like=next(self.parameters()))

    def context(self) -> AttentionContext:
        """Return the attention context of this pass: in training a random one of several, otherwise the first."""
        if self.training and len(self.contexts) > 1:
            return random.choices(self.contexts, weights=self.context_probabilities)[0]
        return self.contexts[0]

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, T), (B) -> (B, D, U), (B)."""
        context = self.context()
        self.pos_enc.extend(audio_signal.size(2), like=next(self.parameters()))
        x = audio_signal.transpose(1, 2)  # (B, D, T) -> (B, T, D)
        if isinstance(self.pre_encode, nn.Linear):
            x = self.pre_encode(x)
        else:
            x, length = self.pre_encode(x=x, lengths=length)
        x, positions = self.pos_enc(x)
        padding, hidden = context.masks(length, x.shape[1])

        for index, (drop_probability, layer) in enumerate(zip(self.drop_probabilities, self.layers, strict=True)):
            skipped = x
            x = layer(x, hidden, positions, padding)
            if self.training and drop_probability > 0:
                x = dropped_or_scaled(x, skipped, drop_probability)
            if index == self.reduction_position:
                x, length = self.reduction_subsampling(x, length)
                positions = self.pos_enc(x)[1]
                padding, hidden = context.masks(length, x.shape[1])

        if self.out_proj is not None:
            x = self.out_proj(x)
        if self.reduction_position == -1:
            x, length = self.reduction_subsampling(x, length)
        return x.transpose(1, 2), length.to(torch.int64)  # (B, U, D) -> (B, D, U)


def stochastic_depth(n_layers: int, probability: float, mode: str, start_layer: int) -> list[float]:
    """Return each layer's probability of being dropped: 0 up to `start_layer`, then rising or constant."""
    if not 0 <= probability < 1:
        raise ValueError(f"stochastic_depth_drop_prob is {probability}; expected at least 0 and below 1")
    if not 1 <= start_layer <= n_layers:
        raise ValueError(f"stochastic_depth_start_layer is {start_layer}; expected 1 to n_layers={n_layers}")
    if mode not in ("linear", "uniform"):
        raise ValueError(f"stochastic_depth_mode is {mode!r}; expected 'linear' or 'uniform'")
    later = n_layers - start_layer
    rising = [index / later * probability for index in range(1, later + 1)]
    return [0.0] * start_layer + (rising if mode == "linear" else [probability] * later)


def dropped_or_scaled(x: Tensor, skipped: Tensor, probability: float) -> Tensor:
    """Drop the layer, or scale its change so that the expectation stays; its weights get gradients in both cases."""
    if torch.rand(1) < probability:
        return x * 0.0 + skipped
    return (x - skipped) / (1.0 - probability) + skipped


def _subsampling(
    kind: str | None, factor: int, feat_in: int, d_model: int, channels: int, chunking_factor: int, causal: bool
) -> nn.Module:
    if not kind or factor <= 1:
        return nn.Linear(feat_in, d_model)
    if kind in ("stacking", "stacking_norm"):
        return StackingSubsampling(factor, feat_in, d_model, norm=kind == "stacking_norm")
    if kind in CONV_KINDS:
        return ConvSubsampling(kind, factor, feat_in, d_model, channels, chunking_factor, causal)  # type: ignore[arg-type]
    raise ValueError(f"subsampling is {kind!r}; expected one of {', '.join(CONV_KINDS)}, stacking, stacking_norm, null")


def _probabilities(probabilities: Sequence[float] | None, contexts: int) -> list[float]:
    if not probabilities:
        return [1.0 / contexts] * contexts
    if len(probabilities) != contexts or not math.isclose(sum(probabilities), 1):
        raise ValueError(f"att_context_probs is {list(probabilities)}; expected {contexts} numbers that sum to 1")
    return list(probabilities)


def _refuse_unsupported(
    attention: str, context_style: str, conv_style: str, chunk_context: object, global_tokens: int
) -> None:
    if attention == "rel_pos_local_attn" or global_tokens:
        raise ValueError(
            "local attention with global tokens is not supported; use rel_pos with att_context_size [left, right]"
        )
    if attention not in ("rel_pos", "abs_pos"):
        raise ValueError(f"self_attention_model is {attention!r}; expected 'rel_pos' or 'abs_pos'")
    if context_style == "chunked_limited_with_rc" or chunk_context is not None:
        raise ValueError("att_context_style chunked_limited_with_rc is not supported; use chunked_limited")
    if conv_style != "regular":
        raise ValueError(f"conv_context_style {conv_style!r} is not supported; use regular, with conv_context_size")
