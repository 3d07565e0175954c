"""Random block masking (NEST, section 2.3): whole blocks of frames are replaced by one embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RandomBlockMasking(nn.Module):
    """Replaces random blocks of frames by an embedding; returns the masked features and the mask.

    With `allow_overlap`, every frame starts a block with probability `mask_prob`; without it, a share `mask_prob` of
    each utterance is covered by blocks on a grid with a random offset. `max_mask_ratio` is accepted for NeMo's
    configurations; it has no effect, as in NeMo.
    """

    def __init__(
        self,
        feat_in: int,
        mask_prob: float = 0.5,
        block_size: int = 48,
        mask_value: float | None = None,
        freeze: bool = True,
        allow_overlap: bool = False,
        max_mask_ratio: float = 0.8,
    ) -> None:
        super().__init__()
        if not 0 <= mask_prob <= 1:
            raise ValueError(f"mask_prob is {mask_prob}; expected a probability from 0 to 1")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; expected at least one frame")
        self.block_size = block_size
        self.mask_prob = mask_prob
        self.allow_overlap = allow_overlap
        if mask_value is None:
            self.mask_embedding = nn.Parameter(torch.empty(feat_in))
            nn.init.normal_(self.mask_embedding, mean=0.0, std=0.1)
        else:
            self.mask_embedding = nn.Parameter(torch.ones(feat_in) * mask_value, requires_grad=False)
        if freeze:
            self.requires_grad_(False)

    def forward(self, input_feats: Tensor, input_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, T), (B) -> masked features (B, D, T) and the mask, ones where masked (B, D, T)."""
        mask = self.blocks(input_lengths, input_feats.shape[2]).unsqueeze(1)  # (B, T) -> (B, 1, T)
        masked = torch.where(mask, self.mask_embedding.view(1, -1, 1), input_feats)
        return masked, mask.to(input_feats.dtype).expand_as(input_feats)

    def blocks(self, lengths: Tensor, frames: int) -> Tensor:
        """Draw the frames to mask (B, T)."""
        draw = self.overlapping_blocks if self.allow_overlap else self.separate_blocks
        return draw(lengths, frames)

    def overlapping_blocks(self, lengths: Tensor, frames: int) -> Tensor:
        """Frames (B, T) under a block that starts at any frame where it still fits the utterance."""
        positions = torch.arange(frames, device=lengths.device)
        fits = positions + self.block_size <= lengths.unsqueeze(1)
        starts = (torch.rand(lengths.shape[0], frames, device=lengths.device) < self.mask_prob) & fits
        lead = nn.functional.pad(starts.unsqueeze(1).float(), (self.block_size - 1, 0))
        return nn.functional.max_pool1d(lead, kernel_size=self.block_size, stride=1).squeeze(1).bool()

    def separate_blocks(self, lengths: Tensor, frames: int) -> Tensor:
        """Frames (B, T) under blocks that never overlap; blocks shrink where an utterance is too short for them."""
        batch, device = lengths.shape[0], lengths.device
        wanted = torch.ceil(lengths * self.mask_prob / self.block_size).long()
        size = torch.full_like(lengths, self.block_size)
        size = torch.where((wanted + 1) * size > lengths, lengths // (wanted + 1), size).clamp_min(1)
        slots = (lengths // size - 1).clamp_min(0)  # one slot is left for the random offset
        wanted = torch.minimum(wanted, slots)

        scores = torch.rand(batch, frames, device=device)
        scores.masked_fill_(torch.arange(frames, device=device) >= slots.unsqueeze(1), float("-inf"))
        most = math.ceil(frames * self.mask_prob / self.block_size)
        chosen = scores.topk(most, dim=1).indices  # (B, blocks)
        used = torch.arange(most, device=device) < wanted.unsqueeze(1)
        offset = (torch.rand(batch, device=device) * size).long()

        starts = torch.where(used, chosen * size.unsqueeze(1) + offset.unsqueeze(1), 0)
        ends = torch.where(used, starts + size.unsqueeze(1), 0)
        opened = torch.zeros(batch, frames + 1, dtype=torch.int32, device=device)
        opened.scatter_add_(1, starts, used.int())
        opened.scatter_add_(1, ends, -used.int())
        return opened[:, :frames].cumsum(dim=1) > 0


class ConvFeatureMaksingWrapper(nn.Module):
    """Masks after the convolutional sub-sampling (`mask_position: post_conv`).

    Takes the place of the encoder's `pre_encode`; name and structure are NeMo's because checkpoints show them.
    The features are detached: targets come from the same sub-sampling, which must not learn to simplify them.
    """

    def __init__(self, pre_encode: nn.Module, masking: RandomBlockMasking) -> None:
        super().__init__()
        self.pre_encode = pre_encode
        self.masking = masking
        self.apply_mask = False
        self.current_mask = torch.empty(0)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, U, D); keeps the mask (B, D, U) of this call for the loss."""
        features, lengths = self.pre_encode(x=x, lengths=lengths)
        features = features.detach().transpose(1, 2)  # (B, U, D) -> (B, D, U)
        if self.apply_mask:
            features, self.current_mask = self.masking(input_feats=features, input_lengths=lengths)
        else:
            self.current_mask = torch.zeros_like(features)
        return features.transpose(1, 2), lengths  # (B, D, U) -> (B, U, D)
