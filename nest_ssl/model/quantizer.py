"""Random-projection quantizer (BEST-RQ, section 3.1): frozen random numbers turn features into target tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn


class RandomProjectionVectorQuantizer(nn.Module):
    """Projects stacked frames with random weights and returns the nearest of V random unit vectors, per codebook.

    Feature and code vectors have length one, so the nearest code is the one with the largest dot product: a single
    float64 product instead of NeMo's (B, U, K, code_dim, V) tensor of differences, and the same tokens.
    """

    def __init__(
        self,
        feat_in: int,
        code_dim: int,
        num_classes: int,
        num_books: int,
        dist_fn: Literal["l2", "cosine"] = "cosine",
        time_ahead: bool = False,
        freeze: bool = True,
        squeeze_single: bool = False,
        combine_time_steps: int = 1,
    ) -> None:
        super().__init__()
        if dist_fn not in ("l2", "cosine"):
            raise ValueError(f"dist_fn is {dist_fn!r}; expected 'l2' or 'cosine'")
        self.code_dim = code_dim
        self.num_classes = num_classes
        self.num_books = num_books
        self.dist_fn = dist_fn
        self.time_ahead = time_ahead
        self.squeeze_single = squeeze_single
        self.combine_time_steps = combine_time_steps
        self.proj = nn.Linear(feat_in * combine_time_steps, num_books * code_dim, bias=False)
        nn.init.xavier_normal_(self.proj.weight)
        # Drawn twice and kept in float64, as NeMo does: the random stream and the tokens depend on both.
        codebooks = torch.randn(num_books, num_classes, code_dim).double()
        nn.init.normal_(codebooks, mean=0, std=1)
        self.codebooks = nn.Parameter(nn.functional.normalize(codebooks, dim=-1))
        if freeze:
            self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, input_signal: Tensor) -> Tensor:
        """Features (B, D, T), or (B, T, D) if `time_ahead`, to tokens (B, U, K), or (B, U) if squeezed."""
        x = input_signal if self.time_ahead else input_signal.transpose(1, 2)  # (B, D, T) -> (B, T, D)
        batch, frames, _ = x.shape
        frames //= self.combine_time_steps
        tokens = self.tokens(x.reshape(batch, frames, -1))  # (B, T, D) -> (B, U, D * steps)
        return tokens.squeeze(-1) if self.num_books == 1 and self.squeeze_single else tokens

    def tokens(self, x: Tensor) -> Tensor:
        """Stacked frames (B, U, D * steps) to tokens (B, U, K)."""
        x = self.proj(x).view(*x.shape[:2], self.num_books, self.code_dim)
        return self.nearest_codes(nn.functional.normalize(x, dim=-1))

    def nearest_codes(self, x: Tensor) -> Tensor:
        """Unit vectors (B, U, K, code_dim) to the index of the nearest code in each book (B, U, K)."""
        similarity = torch.einsum("buki,kvi->bukv", x.to(self.codebooks.dtype), self.codebooks)
        tokens = similarity.argmax(dim=-1)
        if self.dist_fn == "cosine":
            return tokens
        # A padded frame projects to zero, equally far from all codes: NeMo's token is then the code whose length was
        # rounded down most. The loss ignores it, but recordings of tokens contain it.
        silent = (x == 0).all(dim=-1)
        return torch.where(silent, self._nearest_to_zero(), tokens)

    def _nearest_to_zero(self) -> Tensor:
        origin = self.codebooks.new_zeros(1, 1, self.num_books, self.code_dim, 1)
        difference = origin - self.codebooks.transpose(1, 2)  # (1, 1, K, code_dim, V), laid out as NeMo's
        return difference.norm(dim=-2).argmin(dim=-1)
