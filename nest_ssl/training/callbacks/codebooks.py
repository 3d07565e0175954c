"""How much of the code books is used: counts of codes, and what they say. Everything stays where the tokens are."""

from __future__ import annotations

import torch
from torch import Tensor


def count_codes(counts: Tensor, tokens: Tensor, counted: Tensor) -> None:
    """Add to `counts` (K, V) how often each code occurs among the tokens (..., K) of the frames `counted` (...).

    Codes left out are counted as well, zero times: choosing them would make a GPU wait for the answer.
    """
    books, codes = counts.shape
    places = tokens + torch.arange(books, device=tokens.device) * codes  # (..., K) in all books, end to end
    times = counted.unsqueeze(-1).expand_as(places).to(counts.dtype)
    counts.view(-1).index_add_(0, places.reshape(-1), times.reshape(-1))


def coverage(counts: Tensor) -> Tensor:
    """The share of each book's codes that occur at all: (K, V) -> (K)."""
    return (counts > 0).double().mean(dim=1)


def perplexity(counts: Tensor) -> Tensor:
    """How many codes are in use, were all used equally often: exp of the entropy, from 1 to V; 0 without any count."""
    total = counts.sum(dim=1, keepdim=True)
    share = counts.double() / total.clamp_min(1)
    entropy = -torch.special.xlogy(share, share).sum(dim=1)
    return torch.where(total.squeeze(1) > 0, entropy.exp(), 0.0)
