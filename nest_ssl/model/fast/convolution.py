"""The convolution module over packed frames: utterances end to end, with zeros between them."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_reduce

from nest_ssl.model.conformer.convolution import ConformerConvolution, FusedBatchNorm1d
from nest_ssl.model.fast.packing import Packing

BatchNorm = nn.BatchNorm1d | nn.SyncBatchNorm


class Gaps:
    """Utterances end to end, with enough zeros between them that a convolution sees only one utterance.

    The first padded frames still see the end of their utterance, and NeMo's batch norm counts them: `counted` are the
    valid rows and these, `valid` only the valid rows.
    """

    def __init__(self, packing: Packing, context: tuple[int, int]) -> None:
        before, after = context
        valid, counted, start = [], [], 0
        for length in packing.lengths:
            seen = min(before, packing.padded - length)  # frames of padding that see a valid one
            valid.append(torch.arange(start, start + length, device=packing.device))
            counted.append(torch.arange(start, start + length + seen, device=packing.device))
            start += length + before + after
        self.valid, self.counted = torch.cat(valid), torch.cat(counted)
        self._places, self._rows = self.valid + before, before + start
        self.batch_frames = len(packing.lengths) * packing.padded

    def spread(self, x: Tensor) -> Tensor:
        """(N, D) -> (rows, D), zero before the first utterance and in the gaps."""
        return x.new_zeros(self._rows, x.shape[1]).index_copy(0, self._places, x)


def convolve(module: ConformerConvolution, x: Tensor, gaps: Gaps, padding_counts: bool) -> Tensor:
    """Compute the input of the last linear layer: (N, D) -> (N, D)."""
    x = nn.functional.glu(_linear(module.pointwise_conv1, x), dim=-1)
    depthwise, spread = module.depthwise_conv, gaps.spread(x)
    norm = module.batch_norm
    if isinstance(norm, BatchNorm):
        bias = depthwise.bias if depthwise.bias is not None else x.new_zeros(())
        x = _batch_norm(norm, _along_rows(spread, depthwise.weight), bias, gaps, padding_counts)
    else:
        x = _along_rows(spread, depthwise.weight, depthwise.bias).index_select(0, gaps.valid)
        x = x * norm.weight + norm.bias if isinstance(norm, FusedBatchNorm1d) else norm(x)
    return nn.functional.silu(x)


def mix_channels(module: ConformerConvolution, x: Tensor) -> Tensor:
    """Apply the last linear layer: (N, D) -> (N, D)."""
    return _linear(module.pointwise_conv2, x)


def _along_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Filter each channel with its own weights (D, 1, K): (rows, D) -> (rows - K + 1, D).

    x is treated as an image one pixel wide with channels last, its layout in memory: gradients then take a fifth of the
    time of a 1D convolution.
    """
    image = x.t().unsqueeze(0).unsqueeze(-1)  # (rows, D) -> (1, D, rows, 1)
    return nn.functional.conv2d(image, weight.unsqueeze(-1), bias, groups=x.shape[1])[0, :, :, 0].t()


def _linear(convolution: nn.Conv1d, x: Tensor) -> Tensor:
    return nn.functional.linear(x, convolution.weight.squeeze(-1), convolution.bias)


def _batch_norm(norm: BatchNorm, x: Tensor, bias: Tensor, gaps: Gaps, padding_counts: bool) -> Tensor:
    """Normalise (total, D) -> (N, D); x is without the convolution's bias, which subtracting the mean would remove.

    NeMo's statistics include padding, most of which equals the bias: zero here. Sums over a batch need float32 even if
    x has half precision.
    """
    precision = x.dtype
    x = x.to(torch.promote_types(precision, torch.float32))
    valid = x.index_select(0, gaps.valid)
    if not norm.training:
        running_mean, variance = _running(norm)
        mean = running_mean - bias
    else:
        counted = x.index_select(0, gaps.counted) if padding_counts else valid
        own = gaps.batch_frames if padding_counts else len(valid)
        together = _over_ranks(norm, torch.cat((counted.sum(0), x.new_full((1,), own))))
        count = together[-1]  # stays on the device, without synchronisation
        mean = together[:-1] / count
        centred = counted - mean
        silent = own - len(counted)
        variance = _over_ranks(norm, (centred * centred).sum(0) + silent * mean * mean) / count
        _update_running(norm, mean.detach() + bias.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
    scale = torch.rsqrt(variance + norm.eps) * norm.weight
    offset = norm.bias - mean * scale + 0 * bias  # gives the bias a zero gradient, so that the optimizer updates it
    return torch.addcmul(offset, valid, scale).to(precision)


def _over_ranks(norm: BatchNorm, own: Tensor) -> Tensor:
    """Return the sum over all ranks if batch norm is synchronised (`trainer.sync_batchnorm`)."""
    if isinstance(norm, nn.SyncBatchNorm) and distributed.is_initialized():
        return all_reduce(own)
    return own


@torch.no_grad()
def _update_running(norm: BatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    for running, new in zip(_running(norm), (mean, variance), strict=True):
        running.lerp_(new.to(running.dtype), norm.momentum)


def _running(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance, which a Conformer's batch norm always has."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var
