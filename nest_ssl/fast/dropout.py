"""Dropout that draws four decisions from one 64-bit random number, where random numbers are what it costs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_LANES, _BITS = 4, 15  # of the 63 random bits, 15 for each decision
_STEPS = 1 << _BITS


def drop(x: Tensor, module: nn.Dropout) -> Tensor:
    """What `module(x)` does; on a CPU with a probability rounded to 1 / 32768 and half the cost."""
    if not module.training or module.p == 0:
        return x
    dropped = round(module.p * _STEPS)
    if x.device.type != "cpu" or not 0 < dropped < _STEPS:
        return nn.functional.dropout(x, module.p)
    return _Dropout.apply(x, dropped)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        count = x.numel()
        draws = torch.empty(-(-count // _LANES), dtype=torch.int64).random_()
        lanes = draws.view(torch.int16)[:count].bitwise_and_(_STEPS - 1).view(x.shape)
        kept = lanes >= dropped
        ctx.save_for_backward(kept)
        ctx.scale = _STEPS / (_STEPS - dropped)
        return (x * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (gradient * kept).mul_(ctx.scale), None
