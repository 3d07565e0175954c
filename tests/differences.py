"""Compare two checkpoints value by value."""

from __future__ import annotations

from typing import Any

import torch


def differences(ours: Any, theirs: Any, name: str = "") -> list[str]:
    """Return the names of all values that differ; tensors must be equal to the bit."""
    if isinstance(ours, torch.Tensor):
        return [] if torch.equal(ours, theirs) else [name]
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        return [found for key in ours for found in differences(ours[key], theirs[key], f"{name}.{key}")]
    if isinstance(ours, list | tuple):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [found for index, pair in pairs for found in differences(*pair, f"{name}.{index}")]
    return [] if ours == theirs else [name]
