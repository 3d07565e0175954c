"""The result of one batch: the loss, and what callbacks need besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class NoisyBatch(Protocol):
    """A batch for masked prediction: clean, noise and noisy signals (B, S), each with its lengths (B)."""

    audio: Tensor
    audio_len: Tensor
    noise: Tensor
    noise_len: Tensor
    noisy_audio: Tensor
    noisy_audio_len: Tensor


@dataclass(frozen=True)
class MaskedPrediction:
    """The loss of a batch, and the predictions and targets behind it.

    `...` are the decoded frames: all frames (B, U) with `numerics: exact`, with `fast` only the M scored frames. Only
    the loss has a gradient.
    """

    loss: Tensor
    masked: bool  # whether any frame is scored; otherwise the loss is 0 and means nothing
    mask: Tensor  # (B, T) masked feature frames, or (B, U) if masked after the sub-sampling
    scored: Tensor  # (B, U) frames that count in the loss
    lengths: Tensor  # (B) encoder frames without padding
    outputs: Tensor  # (..., V, K) logits or log-probabilities
    tokens: Tensor  # (..., K) targets

    @property
    def decoded_is_scored(self) -> Tensor:
        """Which of the decoded frames are scored (...)."""
        return self.scored if self.tokens.dim() == 3 else torch.ones_like(self.tokens[:, 0], dtype=torch.bool)

    def predicted(self) -> Tensor:
        """The most probable tokens (..., K)."""
        return self.outputs.argmax(dim=-2)

    def in_place(self, tokens: Tensor) -> Tensor:
        """Put tokens of the decoded frames (..., K) at their places in the batch (B, U, K); -1 in all other places."""
        if tokens.dim() == 3:
            return tokens
        placed = tokens.new_full((*self.scored.shape, tokens.shape[-1]), -1)
        placed[self.scored] = tokens
        return placed
