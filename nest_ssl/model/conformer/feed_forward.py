"""Feed-forward module of a Conformer block."""

from __future__ import annotations

from torch import Tensor, nn


class ConformerFeedForward(nn.Module):
    """Expand, SiLU, dropout, contract (Conformer, section 2.3)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float, use_bias: bool = True) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff, bias=use_bias)
        self.activation = nn.SiLU()
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(d_ff, d_model, bias=use_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))
