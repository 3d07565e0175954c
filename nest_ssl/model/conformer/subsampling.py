"""From feature frames (T) to encoder frames (U): strided convolutions, or stacking of neighbours."""

from __future__ import annotations

import math
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

Length = TypeVar("Length", int, Tensor)
ConvKind = Literal["dw_striding", "striding", "vggnet"]
CONV_KINDS = ("dw_striding", "striding", "vggnet")
_STRIDE = 2
# Beyond 2**31 elements in a convolution's output, indices overflow in some backends.
_LARGEST_OUTPUT = 2**31


class Conv2d(nn.Conv2d):
    """A 3x3 convolution, strided or not; causal ones pad before (and, to keep the stride, one after)."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int = 1, causal: bool = False) -> None:
        super().__init__(inputs, outputs, kernel_size=3, stride=stride, padding=0 if causal else 1, groups=groups)
        self.before, self.after = (2, stride - 1) if causal else (0, 0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.padded(x))

    def padded(self, x: Tensor) -> Tensor:
        """(B, C, T, F) with the zeros that a causal convolution sees beyond its own padding."""
        return nn.functional.pad(x, (self.before, self.after, self.before, self.after)) if self.before else x

    def frames(self, length: Length) -> Length:
        return (length + self.before + self.after + 2 * int(self.padding[0]) - 3) // int(self.stride[0]) + 1


class HalvingPool(nn.MaxPool2d):
    """Keeps the larger of two neighbours, rounding the number of frames up."""

    def __init__(self) -> None:
        super().__init__(kernel_size=2, stride=_STRIDE, ceil_mode=True)

    def frames(self, length: Length) -> Length:
        return (length + 1) // 2


class ConvSubsampling(nn.Module):
    """Convolutions that halve time and frequency several times, then one projection of channels and frequencies."""

    def __init__(
        self,
        subsampling: ConvKind,
        subsampling_factor: int,
        feat_in: int,
        feat_out: int,
        conv_channels: int,
        chunking_factor: int = 1,
        causal: bool = False,
    ) -> None:
        super().__init__()
        if subsampling_factor % 2:
            raise ValueError(f"subsampling_factor is {subsampling_factor}; expected an even number")
        if chunking_factor not in (-1, 1) and chunking_factor % 2:
            raise ValueError(f"subsampling_conv_chunking_factor is {chunking_factor}; expected -1, 1 or an even number")
        self.conv_channels = conv_channels
        self.chunking_factor = chunking_factor
        stages = int(math.log2(subsampling_factor))
        make = {"dw_striding": _depthwise_striding, "striding": _striding, "vggnet": _vgg}[subsampling]
        layers = make(stages, conv_channels, causal)
        frequencies = feat_in
        for layer in layers:
            frequencies = _frames_after(layer, frequencies)
        self.out = nn.Linear(conv_channels * frequencies, feat_out)
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D), (B) -> (B, U, D), (B)."""
        chunk = self._utterances_at_once(x)
        parts = [self.convolve(*part) for part in zip(x.split(chunk), lengths.split(chunk), strict=True)]
        x, lengths = parts[0] if len(parts) == 1 else (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return self.out(x.transpose(1, 2).flatten(2)), lengths  # (B, C, U, F) -> (B, U, C * F)

    def convolve(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, C, U, F), silent beyond each utterance's end after every layer that could fill it.

        NeMo masks before every layer; after a layer that keeps zeros, this changes nothing and is skipped.
        """
        x = silence(x.unsqueeze(1), lengths)  # (B, T, D) -> (B, 1, T, D)
        for layer in self.conv:
            x = layer(x)
            if not isinstance(layer, nn.ReLU):
                lengths = _frames_after(layer, lengths)
                x = silence(x, lengths)
        return x, lengths

    def frames(self, length: Length) -> Length:
        """Return the number of encoder frames for a number of feature frames."""
        for layer in self.conv:
            length = _frames_after(layer, length)
        return length

    def _utterances_at_once(self, x: Tensor) -> int:
        """Return how many utterances one pass takes: as configured, or so that indices do not overflow."""
        pieces = self.chunking_factor
        if pieces in (-1, 1):
            excess = x.numel() * self.conv_channels / (_STRIDE * _STRIDE * _LARGEST_OUTPUT)
            pieces = 2 ** math.ceil(math.log2(excess)) if excess > 1 else 1
        return max(1, len(x) // pieces)


def silence(x: Tensor, lengths: Tensor) -> Tensor:
    """Zero (B, C, T, F) from each length on; a product, as NeMo's, so that gradients agree to the bit."""
    valid = torch.arange(x.shape[2], device=x.device) < lengths.unsqueeze(1)  # (B, T)
    return x * valid.to(x.dtype)[:, None, :, None]


def _frames_after(layer: nn.Module, length: Length) -> Length:
    return layer.frames(length) if isinstance(layer, (Conv2d, HalvingPool)) else length


def _depthwise_striding(stages: int, channels: int, causal: bool) -> list[nn.Module]:
    layers: list[nn.Module] = [Conv2d(1, channels, _STRIDE, causal=causal), nn.ReLU(inplace=True)]
    for _ in range(stages - 1):
        layers += [
            Conv2d(channels, channels, _STRIDE, groups=channels, causal=causal),
            nn.Conv2d(channels, channels, kernel_size=1),
            nn.ReLU(inplace=True),
        ]
    return layers


def _striding(stages: int, channels: int, causal: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for stage in range(stages):
        layers += [Conv2d(channels if stage else 1, channels, _STRIDE, causal=causal), nn.ReLU(inplace=True)]
    return layers


def _vgg(stages: int, channels: int, causal: bool) -> list[nn.Module]:
    if causal:
        raise ValueError("causal_downsampling needs subsampling dw_striding or striding, not vggnet")
    layers: list[nn.Module] = []
    for stage in range(stages):
        layers += [Conv2d(channels if stage else 1, channels, stride=1), nn.ReLU(inplace=True)]
        layers += [Conv2d(channels, channels, stride=1), nn.ReLU(inplace=True), HalvingPool()]
    return layers


class StackingSubsampling(nn.Module):
    """Concatenates `subsampling_factor` neighbouring frames and projects them."""

    def __init__(self, subsampling_factor: int, feat_in: int, feat_out: int, norm: bool) -> None:
        super().__init__()
        self.subsampling_factor = subsampling_factor
        self.proj_out = nn.Linear(subsampling_factor * feat_in, feat_out)
        self.pre_norm = nn.LayerNorm(feat_in) if norm else None

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D), (B) -> (B, U, D), (B)."""
        missing = -x.shape[1] % self.subsampling_factor
        x = nn.functional.pad(x, (0, 0, 0, missing))
        if self.pre_norm is not None:
            x = self.pre_norm(x)
        x = x.reshape(x.shape[0], x.shape[1] // self.subsampling_factor, -1)  # (B, T, D) -> (B, U, D * factor)
        # A partly filled last frame is not counted, unless the batch itself had to be padded: NeMo's rule.
        return self.proj_out(x), (lengths + missing) // self.subsampling_factor


class SubsamplingReductionModule(nn.Module):
    """A further reduction of the frame rate between or after the encoder's layers."""

    def __init__(self, reduction: Literal["pooling", "striding"], d_model: int, reduction_factor: int) -> None:
        super().__init__()
        if reduction not in ("pooling", "striding"):
            raise ValueError(f"reduction is {reduction!r}; expected 'pooling' or 'striding'")
        self.reduction_factor = reduction_factor
        self.reduction_enc = (
            nn.MaxPool1d(kernel_size=reduction_factor)
            if reduction == "pooling"
            else ConvSubsampling("striding", reduction_factor, d_model, d_model, conv_channels=d_model)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, U, D), (B) -> (B, fewer U, D), (B)."""
        if isinstance(self.reduction_enc, ConvSubsampling):
            return self.reduction_enc(x, lengths)
        for _ in range(int(math.log2(self.reduction_factor))):  # for factors above 2 NeMo shortens too much; kept
            lengths = (lengths - self.reduction_factor) // self.reduction_factor + 1
        return self.reduction_enc(x.transpose(1, 2)).transpose(1, 2), lengths  # pooled over U
