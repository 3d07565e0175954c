"""Self-attention over packed frames: each utterance by itself on a CPU, all of them padded together on a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nest_ssl.model.conformer.attention import (
    MASKED_SCORE,
    MultiHeadAttention,
    RelPositionMultiHeadAttention,
    no_float16,
    shifted,
)
from nest_ssl.model.conformer.context import AttentionContext
from nest_ssl.model.fast.dropout import drop
from nest_ssl.model.fast.packing import Packing


@dataclass(frozen=True)
class _Projected:
    """The inputs of the scores, rows (N, H, D / H); the last two for relative attention only."""

    query: Tensor
    key: Tensor
    value: Tensor
    by_distance: Tensor | None = None
    distances: Tensor | None = None  # (2 * longest - 1, H, D / H)

    def split(self, lengths: tuple[int, ...]) -> list[_Projected]:
        """Split the rows by utterance."""
        queries, keys, values = (x.split(lengths) for x in (self.query, self.key, self.value))
        by_distance = [None] * len(lengths) if self.by_distance is None else self.by_distance.split(lengths)
        rows = zip(queries, keys, values, by_distance, strict=True)
        return [_Projected(query, key, value, distance, self.distances) for query, key, value, distance in rows]


@dataclass(frozen=True)
class AttentionMask:
    """Which frames see which, for all layers of a batch: those of the same utterance, within the context."""

    context: AttentionContext
    packing: Packing  # no longer than the longest utterance
    hidden: Tensor | None  # (B, 1, U, U) where utterances are padded to one batch

    @classmethod
    def of(cls, context: AttentionContext, packing: Packing, together: bool | None = None) -> AttentionMask:
        """Return the mask of a batch; `together`, one padded batch for all utterances, is by default for GPUs only."""
        tight = Packing(packing.lengths, max(packing.lengths), packing.device)
        if not (packing.device.type != "cpu" if together is None else together):
            return cls(context, tight, None)
        lengths = torch.tensor(packing.lengths, device=packing.device)
        return cls(context, tight, context.masks(lengths, tight.padded)[1].unsqueeze(1))


def attend(module: MultiHeadAttention, x: Tensor, positions: Tensor, attention_mask: AttentionMask) -> Tensor:
    """(N, D) -> (N, D); positions (2 * longest - 1, D) belong to the longest utterance; the others use a part."""
    with no_float16(x.device.type):
        projected = _project(module, x, positions)
        if attention_mask.hidden is not None:
            out = _together(module, projected, attention_mask.hidden, attention_mask.packing)
        else:
            parts = projected.split(attention_mask.packing.lengths)
            out = torch.cat([_one(module, part, attention_mask.context) for part in parts])
        return module.linear_out(out)


def _project(module: MultiHeadAttention, x: Tensor, positions: Tensor) -> _Projected:
    """Apply the linear layers to all utterances at once."""
    shape = (-1, module.n_heads, module.d_head)
    query, key, value = (linear(x).view(shape) for linear in (module.linear_q, module.linear_k, module.linear_v))
    if not isinstance(module, RelPositionMultiHeadAttention):
        return _Projected(query, key, value)
    distances = module.linear_pos(positions).view(shape)
    return _Projected(query + module.pos_bias_u, key, value, query + module.pos_bias_v, distances)


def _one(module: MultiHeadAttention, part: _Projected, context: AttentionContext) -> Tensor:
    """One utterance to (U, D)."""
    frames, scale = len(part.query), 1 / math.sqrt(module.d_head)
    if frames == 0:
        return part.value.flatten(1)
    query, value = part.query.transpose(0, 1), part.value.transpose(0, 1)  # (U, H, D / H) -> (H, U, D / H)
    key = part.key.permute(1, 2, 0)  # (U, H, D / H) -> (H, D / H, U)
    if part.by_distance is None or part.distances is None:
        scores = torch.bmm(query, key) * scale
    else:
        longest = (len(part.distances) + 1) // 2
        near = part.distances[longest - frames : longest + frames - 1].permute(1, 2, 0)  # (H, D / H, 2 * U - 1)
        by_distance = shifted_view(torch.bmm(part.by_distance.transpose(0, 1), near))
        scores = torch.baddbmm(by_distance, query, key, beta=scale, alpha=scale)
    if context.limited:
        scores = scores.masked_fill(~context.visible(frames, scores.device), MASKED_SCORE)
    weights = drop(torch.softmax(scores, dim=-1), module.dropout)
    return torch.bmm(weights, value).transpose(0, 1).flatten(1)  # (H, U, D / H) -> (U, D)


def _together(module: MultiHeadAttention, projected: _Projected, hidden: Tensor, packing: Packing) -> Tensor:
    """All utterances in one padded batch, (N, H, D / H) -> (N, D)."""

    def heads_first(x: Tensor) -> Tensor:
        return packing.unpack(x).transpose(1, 2)  # (N, H, D / H) -> (B, U, H, D / H) -> (B, H, U, D / H)

    scores = heads_first(projected.query) @ heads_first(projected.key).transpose(-2, -1)
    if projected.by_distance is not None and projected.distances is not None:
        by_distance = heads_first(projected.by_distance) @ projected.distances.permute(1, 2, 0)
        scores = scores + shifted(by_distance)[..., : packing.padded]
    scores = (scores / math.sqrt(module.d_head)).masked_fill(hidden, MASKED_SCORE)
    weights = torch.softmax(scores, dim=-1)
    out = drop(weights, module.dropout) @ heads_first(projected.value)
    return packing.pack(out.transpose(1, 2).flatten(2))  # (B, H, U, D / H) -> (N, D)


def shifted_view(scores: Tensor) -> Tensor:
    """Scores by distance (H, U, 2 * U - 1) to scores by key (H, U, U): row i begins at U - 1 - i. Nothing is copied."""
    heads, frames, distances = scores.shape
    return scores.as_strided(
        (heads, frames, frames), (frames * distances, distances - 1, 1), scores.storage_offset() + frames - 1
    )
