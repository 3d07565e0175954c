"""Sub-sampling of the valid frames only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nest_ssl.fast.packing import Packing
from nest_ssl.modules.conformer.subsampling import Conv2d, ConvSubsampling


def subsample(pre_encode: nn.Module, features: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
    """Feature frames (N, D) to encoder frames (M, D), and where these lie."""
    if isinstance(pre_encode, nn.Linear):
        return pre_encode(features), packing
    if isinstance(pre_encode, ConvSubsampling) and features.device.type == "cpu":
        return _one_by_one(pre_encode, features, packing)
    return _padded(pre_encode, features, packing)


def _one_by_one(pre_encode: ConvSubsampling, features: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
    """Each utterance by itself: nothing to silence, because a convolution pads with the zeros that follow it."""
    images = (_convolved(pre_encode.conv, x) for x in features.split(packing.lengths))
    parts = [image[0].transpose(0, 1).flatten(1) for image in images]  # (1, C, U, F) -> (U, C * F)
    padded = int(pre_encode.frames(torch.tensor(packing.padded)))
    return pre_encode.out(torch.cat(parts)), Packing(tuple(map(len, parts)), padded, packing.device)


def _convolved(convolutions: nn.Sequential, x: Tensor) -> Tensor:
    """(T, D) -> (1, C, U, F)."""
    x = x.unsqueeze(0).unsqueeze(0)  # (T, D) -> (1, 1, T, D)
    return convolutions[1:](_as_product(convolutions[0], x))  # type: ignore[arg-type]


def _as_product(layer: Conv2d, x: Tensor) -> Tensor:
    """The first convolution: with one channel to read, a product's gradient costs a tenth of a convolution's."""
    frames = layer.frames(x.shape[2])
    patches = nn.functional.unfold(
        layer.padded(x), layer.kernel_size, padding=int(layer.padding[0]), stride=layer.stride
    )
    assert layer.bias is not None
    x = torch.addmm(layer.bias.unsqueeze(1), layer.weight.flatten(1), patches[0])  # (9, U * F) -> (C, U * F)
    return x.view(1, len(x), frames, -1)


def _padded(pre_encode: nn.Module, features: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
    """All utterances at once, as `exact` does it: for a GPU, and for kinds whose lengths depend on the batch."""
    lengths = torch.tensor(packing.lengths, device=packing.device)
    x, frames = pre_encode(x=packing.unpack(features), lengths=lengths)
    packed = Packing(tuple(frames.tolist()), x.shape[1], packing.device)
    return packed.pack(x), packed
