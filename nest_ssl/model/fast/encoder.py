"""The Conformer over packed frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nest_ssl.model.conformer.encoder import ConformerEncoder, dropped_or_scaled
from nest_ssl.model.conformer.feed_forward import ConformerFeedForward
from nest_ssl.model.conformer.layer import ConformerLayer
from nest_ssl.model.conformer.positions import RelPositionalEncoding
from nest_ssl.model.fast.attention import AttentionMask, attend
from nest_ssl.model.fast.convolution import Gaps, convolve, mix_channels
from nest_ssl.model.fast.dropout import drop
from nest_ssl.model.fast.packing import Packing


def encode(encoder: ConformerEncoder, x: Tensor, packing: Packing, wanted: Tensor, padding_counts: bool) -> Tensor:
    """Encode sub-sampled frames (N, D), and return the rows `wanted` (M, D)."""
    layers: list[ConformerLayer] = list(encoder.layers)  # type: ignore[arg-type]
    context = encoder.context()
    x, positions = _positioned(encoder, x, packing)
    attention_mask = AttentionMask.of(context, packing)
    gaps = Gaps(packing, layers[0].conv.depthwise_conv.context)
    for probability, layer in zip(encoder.drop_probabilities, layers, strict=True):
        rows = wanted if layer is layers[-1] else None
        skipped = x if rows is None else x.index_select(0, rows)
        x = _layer(layer, x, positions, attention_mask, gaps, rows, padding_counts)
        if encoder.training and probability > 0:
            x = dropped_or_scaled(x, skipped, probability)
    return x if encoder.out_proj is None else encoder.out_proj(x)


def _positioned(encoder: ConformerEncoder, x: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
    """Return the first layer's input (N, D), and the distances (2 * longest - 1, D) for relative attention."""
    positions = encoder.pos_enc
    longest = max(1, *packing.lengths)
    positions.extend(longest, like=next(encoder.parameters()))  # x may have half precision
    if positions.xscale:
        x = x * positions.xscale
    embedding = positions.window(longest).squeeze(0)
    if positions.dropout_emb is not None:
        embedding = drop(embedding, positions.dropout_emb)
    if not isinstance(positions, RelPositionalEncoding):
        x = x + embedding.index_select(0, packing.position)
    return drop(x, positions.dropout), embedding


def _layer(
    layer: ConformerLayer,
    x: Tensor,
    positions: Tensor,
    attention_mask: AttentionMask,
    gaps: Gaps,
    rows: Tensor | None,
    padding_counts: bool,
) -> Tensor:
    """(N, D) -> (N, D), or only the given rows: after the convolution, each frame is computed by itself."""
    x = torch.add(x, _feed_forward(layer.feed_forward1, layer.norm_feed_forward1(x), layer.dropout), alpha=0.5)
    attended = attend(layer.self_attn, layer.norm_self_att(x), positions, attention_mask)
    x = x + drop(attended, layer.dropout)
    convolved = convolve(layer.conv, layer.norm_conv(x), gaps, padding_counts)
    if rows is not None:
        x, convolved = x.index_select(0, rows), convolved.index_select(0, rows)
    x = x + drop(mix_channels(layer.conv, convolved), layer.dropout)
    x = torch.add(x, _feed_forward(layer.feed_forward2, layer.norm_feed_forward2(x), layer.dropout), alpha=0.5)
    return layer.norm_out(x)


def _feed_forward(module: ConformerFeedForward, x: Tensor, dropout: nn.Dropout) -> Tensor:
    return drop(module.linear2(drop(nn.functional.silu(module.linear1(x)), module.dropout)), dropout)
