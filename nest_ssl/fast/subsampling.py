"""Sub-sampling of the valid frames only."""

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
    """Each utterance by itself: nothing to silence, because a convolution pads with the zeros that follow it.

    Channels last, and products in place of convolutions, were tried and are slower.
    """
    images = (pre_encode.conv(x.unsqueeze(0).unsqueeze(0)) for x in features.split(packing.lengths))  # (1, C, U, F)
    parts = [image[0].transpose(0, 1).flatten(1) for image in images]  # (1, C, U, F) -> (U, C * F)
    padded = int(pre_encode.frames(torch.tensor(packing.padded)))
    return pre_encode.out(torch.cat(parts)), Packing(tuple(map(len, parts)), padded, packing.device)


def _padded(pre_encode: nn.Module, features: Tensor, packing: Packing) -> tuple[Tensor, Packing]:
    """All utterances at once, as `exact` does it: for a GPU, and for kinds whose lengths depend on the batch."""
    lengths = torch.tensor(packing.lengths, device=packing.device)
    x, frames = pre_encode(x=packing.unpack(features), lengths=lengths)
    packed = Packing(tuple(frames.tolist()), x.shape[1], packing.device)
    return packed.pack(x), packed
