"""What a recording keeps of a tensor. It runs in NeMo's environment, too, where nest_ssl does not exist."""

from __future__ import annotations

import hashlib
from typing import TypedDict

import torch
from torch import Tensor

KEEP_WHOLE = 1 << 16  # elements
SAMPLE = 1 << 12


class TensorDigest(TypedDict):
    """The digest of a large tensor, which `torch.load(..., weights_only=True)` reads."""

    sha256: str
    shape: tuple[int, ...]
    dtype: str
    sample: Tensor  # shows how large a difference is


def keep(tensor: Tensor) -> Tensor | TensorDigest:
    """Return a copy of a small tensor; of a large one a digest and a sample, which show whether another is equal."""
    tensor = tensor.detach()
    if tensor.numel() <= KEEP_WHOLE:
        return tensor.clone()
    flat = tensor.contiguous().flatten()
    flat = flat + 0  # -0.0 and 0.0 are equal, their bytes are not
    return {
        "sha256": hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest(),
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype),
        "sample": flat[:: max(1, flat.numel() // SAMPLE)].clone(),
    }
