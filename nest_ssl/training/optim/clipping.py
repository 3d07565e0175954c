"""Gradient clipping that also checks whether the gradients are finite."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def clip_or_drop(parameters: Sequence[Parameter], max_norm: float | None, drop: bool = True) -> tuple[Tensor, bool]:
    """Clip the gradients to `max_norm` as `clip_grad_norm_` does; set them to None if their norm is not finite.

    Return the norm before clipping and whether it is finite. An optimizer skips parameters without a gradient, moments
    and weight decay included. Without `drop`, the caller skips the step.
    """
    norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if hasattr(norm, "full_tensor"):  # sharded weights
        norm = norm.full_tensor()
    finite = bool(norm.isfinite())
    if not finite and drop:
        for parameter in parameters:
            parameter.grad = None
    elif max_norm is not None:
        clip_grads_with_norm_(parameters, max_norm, norm)
    return norm, finite
