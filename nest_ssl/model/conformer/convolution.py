"""Convolution module of a Conformer block."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PaddedConv1d(nn.Conv1d):
    """Convolution with separate padding on each side, so that it can see fewer future than past frames."""

    def __init__(self, channels: int, kernel_size: int, context: tuple[int, int], bias: bool) -> None:
        super().__init__(channels, channels, kernel_size, groups=channels, bias=bias)
        self.context = context

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, self.context))


class FusedBatchNorm1d(nn.Module):
    """Batch norm with fixed statistics: a scale and an offset for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, U) -> (B, D, U)."""
        return x * self.weight.unsqueeze(-1) + self.bias.unsqueeze(-1)


class ConformerConvolution(nn.Module):
    """Gate, depthwise convolution, norm, SiLU, mix channels (Conformer, section 2.2)."""

    def __init__(
        self, d_model: int, kernel_size: int, norm_type: str, context: tuple[int, int], use_bias: bool = True
    ) -> None:
        super().__init__()
        self.pointwise_conv1 = nn.Conv1d(d_model, 2 * d_model, kernel_size=1, bias=use_bias)
        self.depthwise_conv = PaddedConv1d(d_model, kernel_size, context, bias=use_bias)
        self.norm_over_features = norm_type == "layer_norm"
        self.batch_norm = _norm(norm_type, d_model)  # NeMo's name for every kind of norm
        self.activation = nn.SiLU()
        self.pointwise_conv2 = nn.Conv1d(d_model, d_model, kernel_size=1, bias=use_bias)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """(B, U, D) -> (B, U, D); padded frames (B, U) are silenced before the convolution can see them."""
        x = self.pointwise_conv1(x.transpose(1, 2))  # (B, U, D) -> (B, 2 * D, U)
        x = nn.functional.glu(x, dim=1).masked_fill(padding.unsqueeze(1), 0.0)
        x = self.depthwise_conv(x)
        x = self.activation(self.normalised(x))
        return self.pointwise_conv2(x).transpose(1, 2)  # (B, D, U) -> (B, U, D)

    def normalised(self, x: Tensor) -> Tensor:
        if self.norm_over_features:
            return self.batch_norm(x.transpose(1, 2)).transpose(1, 2)  # (B, D, U) -> (B, U, D) and back
        return self.batch_norm(x)


def _norm(norm_type: str, d_model: int) -> nn.Module:
    if norm_type == "batch_norm":
        return nn.BatchNorm1d(d_model)
    if norm_type == "fused_batch_norm":
        return FusedBatchNorm1d(d_model)
    if norm_type == "instance_norm":
        return nn.InstanceNorm1d(d_model)
    if norm_type == "layer_norm":
        return nn.LayerNorm(d_model)
    groups = norm_type.removeprefix("group_norm")
    if groups != norm_type and groups.isdigit() and int(groups) and d_model % int(groups) == 0:
        return nn.GroupNorm(num_groups=int(groups), num_channels=d_model)
    raise ValueError(
        f"conv_norm_type is {norm_type!r}; expected batch_norm, fused_batch_norm, layer_norm, instance_norm, "
        f"or group_normN with N a divisor of d_model={d_model}"
    )
