"""What a model makes of a batch: the loss, and what those who watch a run want to know beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class NoisyBatch(Protocol):
    """What masked prediction needs of a batch: clean, noise and noisy signals (B, S), each with its lengths (B)."""

    audio: Tensor
    audio_len: Tensor
    noise: Tensor
    noise_len: Tensor
    noisy_audio: Tensor
    noisy_audio_len: Tensor


@dataclass(frozen=True)
class MaskedPrediction:
    """The loss of a batch and what it was made of.

    The frames that were decoded are `...`: all of them (B, U) in `numerics: exact`, in `fast` only the M that the loss
    looks at. Nothing is computed here until somebody asks, and nothing of it leads back to the weights but the loss.
    """

    loss: Tensor
    masked: bool  # whether the loss looks at any frame; without one it is 0 and says nothing
    mask: Tensor  # (B, T) feature frames that were hidden, or (B, U) if masked after the sub-sampling
    scored: Tensor  # (B, U) frames that the loss looks at
    lengths: Tensor  # (B) encoder frames without padding
    outputs: Tensor  # (..., V, K) logits or log-probabilities
    tokens: Tensor  # (..., K) what should have been predicted

    @property
    def decoded_is_scored(self) -> Tensor:
        """Which of the decoded frames the loss looks at (...)."""
        return self.scored if self.tokens.dim() == 3 else torch.ones_like(self.tokens[:, 0], dtype=torch.bool)

    def predicted(self) -> Tensor:
        """The most probable tokens (..., K)."""
        return self.outputs.argmax(dim=-2)

    def in_place(self, tokens: Tensor) -> Tensor:
        """Tokens of the decoded frames (..., K) where they are in the batch (B, U, K); -1 where nothing was decoded."""
        if tokens.dim() == 3:
            return tokens
        placed = tokens.new_full((*self.scored.shape, tokens.shape[-1]), -1)
        placed[self.scored] = tokens
        return placed
