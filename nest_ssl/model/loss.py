"""Masked prediction loss: negative log-likelihood of the tokens, on masked frames only."""

from __future__ import annotations

from torch import Tensor, nn

from nest_ssl.errors import ConfigError


class MultiMLMLoss(nn.Module):
    """Mean over codebooks of the likelihood loss on masked frames.

    An encoder frame counts as masked if more than `mask_threshold` of its `combine_time_steps` feature frames are
    masked. A batch without such a frame has loss 0 and zero gradients; NeMo's is NaN.
    """

    def __init__(
        self,
        combine_time_steps: int = 1,
        mask_threshold: float = 0.8,
        num_decoders: int = 1,
        squeeze_single: bool = False,
    ) -> None:
        super().__init__()
        self.combine_time_steps = combine_time_steps
        self.mask_threshold = mask_threshold
        self.num_decoders = num_decoders
        self.squeeze_single = squeeze_single

    def masked_frames(self, masks: Tensor) -> Tensor:
        """Turn feature masks (B, D, T) into masked encoder frames (B, U)."""
        masks = masks.transpose(1, 2)  # (B, D, T) -> (B, T, D)
        masks = masks.reshape(masks.shape[0], masks.shape[1] // self.combine_time_steps, -1)
        return masks.mean(-1) > self.mask_threshold

    def scored_frames(self, masks: Tensor, decoded: int) -> Tensor:
        """Return the encoder frames that count in the loss (B, U): the masked ones.

        Raise ConfigError if another number of frames was decoded, as targets would be shifted in time. One more is
        allowed: causal sub-sampling adds a frame, which predicts nothing.
        """
        selected = self.masked_frames(masks)
        if decoded - selected.shape[1] not in (0, 1):
            raise ConfigError(
                f"model.loss.combine_time_steps: {self.combine_time_steps} makes {selected.shape[1]} targets of "
                f"{masks.shape[2]} feature frames, but the encoder made {decoded} frames of them; set it, and that of "
                f"model.quantizer, to the number of feature frames in one encoder frame"
            )
        return selected

    def forward(
        self,
        masks: Tensor,
        decoder_outputs: Tensor,
        targets: Tensor,
        decoder_lengths: Tensor | None = None,
        selected: Tensor | None = None,
    ) -> Tensor:
        """Masks (B, D, T), log-probabilities (B, U, V, K) and tokens (B, U, K), the last axis absent if squeezed.

        `decoder_lengths` is part of NeMo's call and decides nothing: masks never reach into padding. `selected` (B, U)
        is the result of `scored_frames`, if the caller has it already.
        """
        if selected is None:
            selected = self.scored_frames(masks, decoder_outputs.shape[1])
        decoder_outputs = decoder_outputs[:, : selected.shape[1]]
        if self.squeeze_single and self.num_decoders == 1:
            return self._likelihood(decoder_outputs, targets, selected)
        losses = [
            self._likelihood(decoder_outputs[:, :, :, book], targets[:, :, book], selected)
            for book in range(self.num_decoders)
        ]
        return sum(losses[1:], losses[0]) / self.num_decoders

    @staticmethod
    def _likelihood(log_probs: Tensor, targets: Tensor, selected: Tensor) -> Tensor:
        """(B, U, V), (B, U), (B, U) -> scalar."""
        targets = nn.functional.pad(targets, (0, selected.shape[1] - targets.shape[1]))
        chosen = log_probs[selected]
        return nn.functional.nll_loss(chosen, targets[selected], reduction="mean" if len(chosen) else "sum")
