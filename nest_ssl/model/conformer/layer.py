"""One Conformer block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nest_ssl.model.conformer.attention import MultiHeadAttention
from nest_ssl.model.conformer.convolution import ConformerConvolution
from nest_ssl.model.conformer.feed_forward import ConformerFeedForward


class ConformerLayer(nn.Module):
    """Half a feed-forward, attention, convolution, the other half, each on a residual (Conformer, section 2.4).

    The caller builds the parts, in the order in which NeMo draws their weights.
    """

    def __init__(
        self,
        d_model: int,
        dropout: float,
        feed_forward1: ConformerFeedForward,
        conv: ConformerConvolution,
        self_attn: MultiHeadAttention,
        feed_forward2: ConformerFeedForward,
    ) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(d_model)
        self.feed_forward1 = feed_forward1
        self.norm_conv = nn.LayerNorm(d_model)
        self.conv = conv
        self.norm_self_att = nn.LayerNorm(d_model)
        self.self_attn = self_attn
        self.norm_feed_forward2 = nn.LayerNorm(d_model)
        self.feed_forward2 = feed_forward2
        self.dropout = nn.Dropout(dropout)
        self.norm_out = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, attention_mask: Tensor, positions: Tensor, padding: Tensor) -> Tensor:
        """(B, U, D) -> (B, U, D); masks are true for frames that must not be seen."""
        # Halving is exact, so one fused addition gives the bits of NeMo's product and sum.
        x = torch.add(x, self.dropout(self.feed_forward1(self.norm_feed_forward1(x))), alpha=0.5)
        x = x + self.dropout(self.self_attn(self.norm_self_att(x), attention_mask, positions))
        x = x + self.dropout(self.conv(self.norm_conv(x), padding))
        x = torch.add(x, self.dropout(self.feed_forward2(self.norm_feed_forward2(x))), alpha=0.5)
        return self.norm_out(x)
