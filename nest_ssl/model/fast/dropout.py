"""Dropout at a third of the usual cost on a CPU, where most of the cost is random numbers.

One 64-bit random number makes four decisions. A small fast generator, seeded from torch's, draws it, so that the run's
seed decides everything and a checkpoint needs only torch's state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LANES = 4
_STEPS = 1 << 16  # how finely a probability is rounded
_LOWEST = -(1 << 15)  # the smallest lane, as int16


def drop(x: Tensor, module: nn.Dropout) -> Tensor:
    """Do the same as `module(x)`, with the probability rounded to a multiple of 1 / 65536."""
    if not module.training or module.p == 0:
        return x
    dropped = round(module.p * _STEPS)
    if x.device.type != "cpu" or not 0 < dropped < _STEPS:
        return nn.functional.dropout(x, module.p)
    return _Product.apply(x, _scaled_mask(x.shape, dropped, x.dtype))


class _Product(torch.autograd.Function):
    """A product with a constant mask; autograd's product would also keep x in memory, for an unneeded gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient * mask, None


def _scaled_mask(shape: torch.Size, dropped: int, dtype: torch.dtype) -> Tensor:
    """Return 0 where a value is dropped, else the factor that keeps the mean; arithmetic is faster than comparing.

    It needs at least float32: in half precision, neighbouring lanes would be equal.
    """
    count = shape.numel()
    generator = np.random.Generator(np.random.SFC64(int(torch.randint(1 << 62, ()))))
    draws = generator.integers(0, 2**64 - 1, size=-(-count // _LANES), dtype=np.uint64, endpoint=True)
    lanes = torch.from_numpy(draws.view(np.int16)[:count]).view(shape)
    last_dropped = _LOWEST + dropped - 1
    wide = torch.promote_types(dtype, torch.float32)
    kept = lanes.to(wide).clamp_(last_dropped, last_dropped + 1).sub_(last_dropped)  # whole numbers: 0 or 1
    return kept.mul_(_STEPS / (_STEPS - dropped)).to(dtype)
