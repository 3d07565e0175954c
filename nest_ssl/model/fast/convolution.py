"""The convolution module over packed frames: utterances end to end, with zeros between them."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_reduce

from nest_ssl.model.conformer.convolution import ConformerConvolution, FusedBatchNorm1d
from nest_ssl.model.fast.packing import Packing

BatchNorm = nn.BatchNorm1d | nn.SyncBatchNorm


class Gaps:
    """Utterances laid out with enough zeros between them that a convolution sees no neighbour.

    A frame in the padding still sees the end of its utterance, as in NeMo, where batch norm counts it: `counted` are
    the valid rows and those, `valid` the valid ones alone.
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
    """(N, D) to what goes into the last linear layer (N, D)."""
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
    """The last linear layer: (N, D) -> (N, D)."""
    return _linear(module.pointwise_conv2, x)


def _along_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each channel by its own filter (D, 1, K): (rows, D) -> (rows - K + 1, D).

    As an image one pixel wide whose channels are last, which is how x lies in memory: its gradients cost a fifth of
    those of a convolution in one dimension.
    """
    image = x.t().unsqueeze(0).unsqueeze(-1)  # (rows, D) -> (1, D, rows, 1)
    return nn.functional.conv2d(image, weight.unsqueeze(-1), bias, groups=x.shape[1])[0, :, :, 0].t()


def _linear(convolution: nn.Conv1d, x: Tensor) -> Tensor:
    return nn.functional.linear(x, convolution.weight.squeeze(-1), convolution.bias)


def _batch_norm(norm: BatchNorm, x: Tensor, bias: Tensor, gaps: Gaps, padding_counts: bool) -> Tensor:
    """Normalise (total, D) -> (N, D); x is without the convolution's bias, which the mean would take away again.

    NeMo's statistics run over the padded batch, most of whose padding is the bias alone: zero here. Sums over a batch
    need float32 even where x is of half precision.
    """
    precision = x.dtype
    x = x.to(torch.promote_types(precision, torch.float32))
    valid = x.index_select(0, gaps.valid)
    if not norm.training:
        running_mean, variance = _memory(norm)
        mean = running_mean - bias
    else:
        counted = x.index_select(0, gaps.counted) if padding_counts else valid
        own = gaps.batch_frames if padding_counts else len(valid)
        together = _over_processes(norm, torch.cat((counted.sum(0), x.new_full((1,), own))))
        count = together[-1]  # stays on the device: nothing waits for it
        mean = together[:-1] / count
        centred = counted - mean
        silent = own - len(counted)
        variance = _over_processes(norm, (centred * centred).sum(0) + silent * mean * mean) / count
        _remember(norm, mean.detach() + bias.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
    scale = torch.rsqrt(variance + norm.eps) * norm.weight
    offset = norm.bias - mean * scale + 0 * bias  # a gradient of zero, for the optimiser to see the bias at all
    return torch.addcmul(offset, valid, scale).to(precision)


def _over_processes(norm: BatchNorm, own: Tensor) -> Tensor:
    """The sum over all processes of a run that synchronises batch norm (`trainer.sync_batchnorm`)."""
    if isinstance(norm, nn.SyncBatchNorm) and distributed.is_initialized():
        return all_reduce(own)
    return own


@torch.no_grad()
def _remember(norm: BatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    for running, new in zip(_memory(norm), (mean, variance), strict=True):
        running.lerp_(new.to(running.dtype), norm.momentum)


def _memory(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """The running mean and variance, which a Conformer's batch norm always has."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var
