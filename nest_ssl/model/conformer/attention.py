"""Self-attention with absolute or relative positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

MASKED_SCORE = -10000.0  # finite, so that a fully masked row gives zeros and no NaN


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention (Transformer, section 3.2)."""

    def __init__(
        self,
        n_heads: int,
        d_model: int,
        dropout: float,
        use_bias: bool = True,
        use_pytorch_sdpa: bool = False,
        sdpa_backends: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model={d_model} is not a multiple of n_heads={n_heads}")
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.use_pytorch_sdpa = use_pytorch_sdpa
        self.sdpa_backends = [_backend(name) for name in sdpa_backends]
        self.linear_q = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_k = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_v = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_out = nn.Linear(d_model, d_model, bias=use_bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """(B, U, D), mask (B, U, U) true for hidden frames, positions (1, positions, D) -> (B, U, D)."""
        if torch.is_autocast_enabled("cuda"):  # not on a CPU, as in NeMo: sums of gradients depend on it
            x = x.to(torch.float32)
        with no_float16(x.device.type):
            return self.attend(x, mask.unsqueeze(1), positions)

    def attend(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        query, key, value = (self._heads(linear(x)) for linear in (self.linear_q, self.linear_k, self.linear_v))
        if self.use_pytorch_sdpa:
            return self.fused(query, key, value, ~mask, fully_masked_rows=mask.all(dim=-1, keepdim=True))
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_head)
        return self.mix(scores, value, mask)

    def mix(self, scores: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Scores (B, H, U, U) to the output (B, U, D)."""
        weights = torch.softmax(scores.masked_fill_(mask, MASKED_SCORE), dim=-1).masked_fill(mask, 0.0)
        return self._merged(torch.matmul(self.dropout(weights), value))

    def fused(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, fully_masked_rows: Tensor) -> Tensor:
        """PyTorch's own kernel; `bias` masks or is added to the scores, `fully_masked_rows` (B, 1, U, 1) give zeros."""
        with sdpa_kernel(self.sdpa_backends) if self.sdpa_backends else nullcontext():
            out = nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, dropout_p=self.dropout.p if self.training else 0.0
            )
        return self._merged(out.masked_fill(fully_masked_rows, 0.0))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.n_heads, self.d_head).transpose(1, 2)  # (B, U, D) -> (B, H, U, D / H)

    def _merged(self, x: Tensor) -> Tensor:
        return self.linear_out(x.transpose(1, 2).flatten(2))  # (B, H, U, D / H) -> (B, U, D)


class RelPositionMultiHeadAttention(MultiHeadAttention):
    """Attention by content and distance (Transformer-XL, section 3.3)."""

    def __init__(
        self,
        n_heads: int,
        d_model: int,
        dropout: float,
        use_bias: bool = True,
        use_pytorch_sdpa: bool = False,
        sdpa_backends: Sequence[str] = (),
        shared_biases: tuple[nn.Parameter, nn.Parameter] | None = None,
    ) -> None:
        super().__init__(n_heads, d_model, dropout, use_bias, use_pytorch_sdpa, sdpa_backends)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.pos_bias_u, self.pos_bias_v = shared_biases or position_biases(n_heads, self.d_head)

    def attend(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        query = self.linear_q(x).view(x.shape[0], -1, self.n_heads, self.d_head)  # (B, U, H, D / H)
        key, value = self._heads(self.linear_k(x)), self._heads(self.linear_v(x))
        distance = self._heads(self.linear_pos(positions))  # (1, H, 2 * U - 1, D / H)
        by_content = (query + self.pos_bias_u).transpose(1, 2)  # (B, U, H, D / H) -> (B, H, U, D / H)
        by_distance = (query + self.pos_bias_v).transpose(1, 2)
        frames = key.shape[2]
        distance_scores = shifted(torch.matmul(by_distance, distance.transpose(-2, -1)))[..., :frames]
        if self.use_pytorch_sdpa:
            bias = (distance_scores * (1 / math.sqrt(self.d_head))).masked_fill_(mask, MASKED_SCORE)
            return self.fused(by_content, key, value, bias, fully_masked_rows=mask.all(dim=-1, keepdim=True))
        scores = torch.matmul(by_content, key.transpose(-2, -1)).add_(distance_scores)
        return self.mix(scores.div_(math.sqrt(self.d_head)), value, mask)


def position_biases(n_heads: int, d_head: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the two learnt biases of relative attention, `u` for content and `v` for distance."""
    return nn.Parameter(torch.zeros(n_heads, d_head)), nn.Parameter(torch.zeros(n_heads, d_head))


def shifted(scores: Tensor) -> Tensor:
    """Scores by distance (B, H, U, 2 * U - 1) to scores by key: row i moves left by U - 1 - i."""
    batch, heads, frames, distances = scores.shape
    scores = nn.functional.pad(scores, (1, 0)).view(batch, heads, -1, frames)
    return scores[:, :, 1:].view(batch, heads, frames, distances)


def no_float16(device_type: str) -> AbstractContextManager:
    """Use bfloat16, or float32 if not supported, inside a float16 autocast, in which attention would overflow."""
    if (
        device_type == "cuda"
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == torch.float16
    ):
        return torch.autocast("cuda", dtype=torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32)
    return nullcontext()


def _backend(name: str) -> SDPBackend:
    try:
        return getattr(SDPBackend, name)
    except AttributeError:
        known = ", ".join(SDPBackend.__members__)
        raise ValueError(f"use_pytorch_sdpa_backends has {name!r}; expected names from {known}") from None
