"""Which frames may see which: limits of attention and convolution, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

UNLIMITED = -1
ContextStyle = Literal["regular", "chunked_limited"]


@dataclass(frozen=True)
class AttentionContext:
    """How many frames attention sees to the left and right; chunks see themselves and whole chunks before them."""

    left: int
    right: int
    style: ContextStyle

    @property
    def limited(self) -> bool:
        """Whether more than padding is hidden."""
        return (self.left, self.right) != (UNLIMITED, UNLIMITED)

    def masks(self, lengths: Tensor, frames: int) -> tuple[Tensor, Tensor]:
        """Return padding (B, U), and what attention must not see (B, U, U): rows are queries, columns keys."""
        valid = torch.arange(frames, device=lengths.device) < lengths.unsqueeze(1)
        seen = valid.unsqueeze(1) & valid.unsqueeze(2) & self.visible(frames, lengths.device)
        return ~valid, ~seen

    def visible(self, frames: int, device: torch.device) -> Tensor:
        """Return what the context alone, without padding, allows (U, U)."""
        if self.style == "chunked_limited" and self.right != UNLIMITED:
            chunk = torch.arange(frames, device=device) // (self.right + 1)
            behind = chunk.unsqueeze(1) - chunk.unsqueeze(0)  # how many chunks the key lies before the query
            seen = behind >= 0
            return seen & (behind <= self.left // (self.right + 1)) if self.left != UNLIMITED else seen
        seen = torch.ones(frames, frames, dtype=torch.bool, device=device)
        if self.left >= 0:
            seen = seen.triu(diagonal=-self.left)
        if self.right >= 0:
            seen = seen.tril(diagonal=self.right)
        return seen


def attention_contexts(sizes: Any, style: str) -> list[AttentionContext]:
    """Parse `att_context_size`: one pair or a list of pairs, of which the first is the default."""
    if style not in ("regular", "chunked_limited"):
        raise ValueError(f"att_context_style is {style!r}; expected 'regular' or 'chunked_limited'")
    pairs = sizes or [[UNLIMITED, UNLIMITED]]
    if isinstance(pairs[0], int):
        pairs = [pairs]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(size, int) and size >= UNLIMITED for size in pair):
            raise ValueError(f"att_context_size has {list(pair)}; expected [left, right] frames, -1 for unlimited")
        if style == "chunked_limited":
            left, right = pair
            if right == UNLIMITED and len(pairs) == 1:
                raise ValueError("att_context_size: chunked_limited needs a limit on the right, not -1")
            if left > 0 and left % (right + 1):
                raise ValueError(
                    f"att_context_size: left={left} is not a multiple of the chunk, right + 1 = {right + 1}"
                )
    return [AttentionContext(left, right, style) for left, right in pairs]  # type: ignore[arg-type]


def convolution_context(size: Sequence[int] | str | None, kernel_size: int) -> tuple[int, int]:
    """Return how many frames the convolution sees before and after the current one."""
    if kernel_size % 2 == 0:
        raise ValueError(f"conv_kernel_size is {kernel_size}; expected an odd number")
    if size is None:
        return (kernel_size - 1) // 2, (kernel_size - 1) // 2
    if size == "causal":
        return kernel_size - 1, 0
    if isinstance(size, str) or len(size) != 2 or sum(size) + 1 != kernel_size:
        raise ValueError(
            f"conv_context_size is {size!r}; expected 'causal' or [left, right] with left + right + 1 = {kernel_size}"
        )
    return size[0], size[1]
