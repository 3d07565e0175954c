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
    parts = [_convolved(pre_encode.conv, x) for x, frames in utterances if frames]
    return pre_encode.out(torch.cat(parts) if parts else features.new_empty(0, pre_encode.out.in_features))


def _convolved(convolutions: nn.Sequential, features: Tensor) -> Tensor:
    """(T, D) -> (U, C * F). Between the layers, x has a row for each place of the image: (T * F, C), channels last."""
    first, *others = convolutions
    x, frames = _as_product(first, features)  # type: ignore[arg-type]
    for layer in others:
        if isinstance(layer, nn.ReLU):
            x = layer(x)
        elif isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1):
            x = nn.functional.linear(x, layer.weight.flatten(1), layer.bias)
        else:
            image = _on_image(layer, x.view(1, frames, -1, x.shape[1]).permute(0, 3, 1, 2))  # (1, C, T, F)
            frames = image.shape[2]
            x = image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])
    return x.view(frames, -1, x.shape[1]).transpose(1, 2).flatten(1)  # (U, F, C) -> (U, C, F) -> (U, C * F)


def _as_product(layer: Conv2d, features: Tensor) -> tuple[Tensor, int]:
    """Compute the first convolution as a matrix product: with one input channel, its gradient is 10 times cheaper."""
    image = features.unsqueeze(0).unsqueeze(0)  # (T, D) -> (1, 1, T, D)
    patches = nn.functional.unfold(
        layer.padded(image), layer.kernel_size, padding=int(layer.padding[0]), stride=layer.stride
    )
    rows = nn.functional.linear(patches[0].t(), layer.weight.flatten(1), layer.bias)  # (T * F, 9) -> (T * F, C)
    return rows, layer.frames(len(features))


def _on_image(layer: nn.Module, image: Tensor) -> Tensor:
    """Apply a layer; a depthwise one without autocast: its gradient in half precision takes over ten times as long."""
    if not isinstance(layer, nn.Conv2d) or layer.groups == 1:
        return layer(image)
    with torch.autocast(image.device.type, enabled=False):
        return layer(image.to(layer.weight.dtype))


def _padded(pre_encode: ConvSubsampling, features: Tensor, packing: Packing, after: Packing) -> Tensor:
    """Sub-sample all utterances in one padded batch, as `exact` does: for a GPU."""
    lengths = torch.tensor(packing.lengths, device=packing.device)
    x, _ = pre_encode(x=packing.unpack(features), lengths=lengths)
    return after.pack(x)
