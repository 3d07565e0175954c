"""Sinusoidal positions: absolute ones are added to the input, relative ones enter the attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_LONGEST_PERIOD = 10000.0


class PositionalEncoding(nn.Module):
    """Scales the input, adds absolute positions (Transformer, section 3.5), drops out."""

    pe: Tensor

    def __init__(self, d_model: int, dropout: float, xscale: float | None, dropout_emb: float = 0.0) -> None:
        super().__init__()
        self.d_model = d_model
        self.xscale = xscale
        self.dropout = nn.Dropout(dropout)
        self.dropout_emb = nn.Dropout(dropout_emb) if dropout_emb > 0 else None
        self.register_buffer("pe", torch.empty(1, 0, d_model), persistent=False)

    def extend(self, length: int, like: Tensor) -> None:
        """Compute positions for sequences of this length, if they are missing."""
        positions = self.positions(length, like.device)
        if self.pe.size(1) < len(positions):
            self.pe = sinusoids(positions, self.d_model).to(like.dtype).unsqueeze(0)  # (1, positions, D)

    def positions(self, length: int, device: torch.device) -> Tensor:
        return torch.arange(0, length, dtype=torch.float32, device=device)

    def window(self, length: int) -> Tensor:
        """The positions of a sequence of this length (1, positions, D)."""
        return self.pe[:, :length]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, U, D) -> the encoder's input (B, U, D) and the positions used (1, positions, D)."""
        if self.xscale:
            x = x * self.xscale
        embedding = self._dropped(self.window(x.size(1)))
        return self.dropout(x + embedding), embedding

    def _dropped(self, embedding: Tensor) -> Tensor:
        return embedding if self.dropout_emb is None else self.dropout_emb(embedding)


class RelPositionalEncoding(PositionalEncoding):
    """Distances from U - 1 down to -(U - 1) (Transformer-XL, appendix B); the input is only scaled and dropped out."""

    def positions(self, length: int, device: torch.device) -> Tensor:
        return torch.arange(length - 1, -length, -1, dtype=torch.float32, device=device)

    def window(self, length: int) -> Tensor:
        zero = self.pe.size(1) // 2  # index of distance 0
        return self.pe[:, zero + 1 - length : zero + length]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.xscale:
            x = x * self.xscale
        embedding = self._dropped(self.window(x.size(1)))  # drawn first, as in NeMo
        return self.dropout(x), embedding


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """(positions) -> (positions, D): sines on even features, cosines on odd ones."""
    features = torch.arange(0, d_model, 2, dtype=torch.float32, device=positions.device)
    angles = positions.unsqueeze(1) * torch.exp(features * -(math.log(_LONGEST_PERIOD) / d_model))
    table = torch.zeros(positions.shape[0], d_model, device=positions.device)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles)
    return table
