"""Pack the valid frames of all utterances end to end, and unpack them where a kernel needs a padded batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """The places of utterances: utterance b has `lengths[b]` rows; in a padded batch each has `padded` rows."""

    lengths: tuple[int, ...]
    padded: int
    device: torch.device

    @cached_property
    def position(self) -> Tensor:
        """The position of each row within its utterance (N)."""
        return torch.cat([torch.arange(length, device=self.device) for length in self.lengths])

    @cached_property
    def rows(self) -> Tensor:
        """The position of each row in the padded batch, flattened to (B * padded) (N)."""
        starts = [torch.full((length,), b * self.padded, device=self.device) for b, length in enumerate(self.lengths)]
        return torch.cat(starts) + self.position

    def pack(self, x: Tensor) -> Tensor:
        """(B, padded, ...) -> (N, ...)."""
        return x.flatten(0, 1).index_select(0, self.rows)

    def unpack(self, x: Tensor) -> Tensor:
        """(N, ...) -> (B, padded, ...), zero in the padding."""
        batch = x.new_zeros(len(self.lengths) * self.padded, *x.shape[1:]).index_copy(0, self.rows, x)
        return batch.view(len(self.lengths), self.padded, *x.shape[1:])
