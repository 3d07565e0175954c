"""Sub-sampling of the valid frames only, in the layout in which convolutions are fast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nest_ssl.fast.packing import Packing
from nest_ssl.modules.conformer.subsampling import ConvSubsampling


def subsample(pre_encode: nn.Module, features: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
    """Feature frames (N, D) to encoder frames (M, D), and where these lie."""
    if isinstance(pre_encode, nn.Linear):
        return pre_encode(features), packing
    if isinstance(pre_encode, ConvSubsampling) and features.device.type == "cpu":
        return _one_by_one(pre_encode, features, packing)
    return _padded(pre_encode, features, packing)


def _one_by_one(pre_encode: ConvSubsampling, features: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
    """Each utterance by itself: nothing to silence, because a convolution pads with the zeros that follow it."""
    parts = [_convolved(pre_encode.conv, x) for x in features.split(packing.lengths)]
    x = torch.cat(parts)  # (M, F, C)
    weight = pre_encode.out.weight.view(pre_encode.out.out_features, x.shape[2], x.shape[1])  # (D, C, F)
    x = nn.functional.linear(x.flatten(1), weight.transpose(1, 2).flatten(1), pre_encode.out.bias)
    padded = int(pre_encode.frames(torch.tensor(packing.padded)))
    return x, Packing(tuple(len(part) for part in parts), padded, packing.device)


def _convolved(layers: nn.Sequential, x: Tensor) -> Tensor:
    """One utterance (T, D) through the convolutions: (U, F, C). Channels last, where a 1x1 convolution is a product."""
    x = x.unsqueeze(2)  # (T, D) -> (T, F, C)
    for layer in layers:
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1):
            x = nn.functional.linear(x, layer.weight[:, :, 0, 0], layer.bias)
        elif isinstance(layer, nn.ReLU):
            x = layer(x)
        else:
            x = layer(x.permute(2, 0, 1).unsqueeze(0))[0].permute(1, 2, 0)  # (T, F, C) -> (1, C, T, F) and back
    return x


def _padded(pre_encode: nn.Module, features: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
    """All utterances at once, as `exact` does it: for a GPU, and for kinds whose lengths depend on the batch."""
    lengths = torch.tensor(packing.lengths, device=packing.device)
    x, frames = pre_encode(x=packing.unpack(features), lengths=lengths)
    packed = Packing(tuple(frames.tolist()), x.shape[1], packing.device)
    return packed.pack(x), packed
