"""Sub-sampling of the valid frames only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nest_ssl.model.conformer.subsampling import Conv2d, ConvSubsampling
from nest_ssl.model.fast.packing import Packing


def subsample(pre_encode: nn.Module, features: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
    """Turn feature frames (N, D) into encoder frames (M, D) with their packing."""
    if isinstance(pre_encode, nn.Linear):
        return pre_encode(features), packing
    assert isinstance(pre_encode, ConvSubsampling)  # else `exact` takes over: see support.py
    after = Packing(tuple(map(pre_encode.frames, packing.lengths)), pre_encode.frames(packing.padded), packing.device)
    way = _one_by_one if features.device.type == "cpu" else _padded
    return way(pre_encode, features, packing, after), after


def _one_by_one(pre_encode: ConvSubsampling, features: Tensor, packing: Packing, after: Packing) -> Tensor:
    """Sub-sample each utterance by itself: no masking is needed, as the convolution pads with zeros."""
    utterances = zip(features.split(packing.lengths), after.lengths, strict=True)
    images = [_convolved(pre_encode.conv, x) for x, frames in utterances if frames]
    parts = [image[0].transpose(0, 1).flatten(1) for image in images]  # (1, C, U, F) -> (U, C * F)
    return pre_encode.out(torch.cat(parts) if parts else features.new_empty(0, pre_encode.out.in_features))


def _convolved(convolutions: nn.Sequential, x: Tensor) -> Tensor:
    """(T, D) -> (1, C, U, F)."""
    x = x.unsqueeze(0).unsqueeze(0)  # (T, D) -> (1, 1, T, D)
    return convolutions[1:](_as_product(convolutions[0], x))  # type: ignore[arg-type]


def _as_product(layer: Conv2d, x: Tensor) -> Tensor:
    """Compute the first convolution as a matrix product: with one input channel, its gradient is 10 times cheaper."""
    frames = layer.frames(x.shape[2])
    patches = nn.functional.unfold(
        layer.padded(x), layer.kernel_size, padding=int(layer.padding[0]), stride=layer.stride
    )
    assert layer.bias is not None
    x = torch.addmm(layer.bias.unsqueeze(1), layer.weight.flatten(1), patches[0])  # (9, U * F) -> (C, U * F)
    return x.view(1, len(x), frames, -1)


def _padded(pre_encode: ConvSubsampling, features: Tensor, packing: Packing, after: Packing) -> Tensor:
    """Sub-sample all utterances in one padded batch, as `exact` does: for a GPU."""
    lengths = torch.tensor(packing.lengths, device=packing.device)
    x, _ = pre_encode(x=packing.unpack(features), lengths=lengths)
    return after.pack(x)
