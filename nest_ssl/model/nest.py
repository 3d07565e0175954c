"""NEST: predict the tokens of clean speech from masked, noisy speech (arXiv 2408.13106)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nest_ssl.model.build import MODEL_DEFAULTS, build_parts
from nest_ssl.model.masking import ConvFeatureMaksingWrapper
from nest_ssl.model.prediction import MaskedPrediction, NoisyBatch

_log = logging.getLogger(__name__)


class Nest(nn.Module):
    """Clean speech -> features -> quantizer -> tokens; noisy speech -> features -> mask -> encoder -> decoder.

    The loss asks the decoder for the tokens of the masked frames. Everything here is wiring: the mathematics is in
    the parts, whose names are those of NeMo's checkpoints.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Build the parts that a resolved `model` node describes, drawing random weights in NeMo's order."""
        super().__init__()
        self.settings: dict[str, Any] = dict(settings)
        parts = build_parts(self.settings)
        # In NeMo's order, which decides the sum in gradient clipping and the optimizer's state.
        self.preprocessor = parts.preprocessor
        self.encoder = parts.encoder
        self.loss = parts.loss
        self.quantizer = parts.quantizer
        self.mask_processor = parts.mask_processor
        self.decoder = parts.decoder
        self.pre_encoder: ConvFeatureMaksingWrapper | None = None
        if self.settings.get("mask_position") == "post_conv":
            self.pre_encoder = ConvFeatureMaksingWrapper(self.encoder.pre_encode, self.mask_processor)
            self.pre_encoder.pre_encode.requires_grad_(False)
            self.encoder.pre_encode = self.pre_encoder
        self.parts = parts
        self.fast = self.settings.get("numerics") == "fast" and self._can_be_fast()
        if self.settings.get("compile"):
            for layer in self.encoder.layers:  # one by one: equal layers share their compiled code
                layer.compile(dynamic=True)

    def forward(
        self,
        input_signal: Tensor | None = None,
        input_signal_length: Tensor | None = None,
        processed_signal: Tensor | None = None,
        processed_signal_length: Tensor | None = None,
        noise_signal: Tensor | None = None,
        noise_signal_length: Tensor | None = None,
        processed_noise_signal: Tensor | None = None,
        processed_noise_signal_length: Tensor | None = None,
        noisy_input_signal: Tensor | None = None,
        noisy_input_signal_length: Tensor | None = None,
        processed_noisy_input_signal: Tensor | None = None,
        processed_noisy_input_signal_length: Tensor | None = None,
        apply_mask: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Clean and noisy speech, each as samples (B, S) or as features (B, D, T), with their lengths (B).

        Return log-probabilities (B, U, V, K), their lengths (B), the mask (B, D, T) and the tokens (B, U, K). The
        noise by itself is accepted, as in NeMo, and not used.
        """
        clean, clean_length = self._features(
            "input_signal", input_signal, input_signal_length, processed_signal, processed_signal_length
        )
        noisy, noisy_length = self._features(
            "noisy_input_signal",
            noisy_input_signal,
            noisy_input_signal_length,
            processed_noisy_input_signal,
            processed_noisy_input_signal_length,
        )
        if self.pre_encoder is not None:
            tokens = self._tokens_after_subsampling(clean, clean_length)
            self.pre_encoder.apply_mask = apply_mask
            encoded, encoded_length = self.encoder(audio_signal=noisy, length=noisy_length)
            masks = self.pre_encoder.current_mask
        else:
            tokens = self.quantizer(input_signal=clean)
            if apply_mask:
                noisy, masks = self.mask_processor(input_feats=noisy, input_lengths=noisy_length)
            else:
                masks = torch.zeros_like(noisy)
            encoded, encoded_length = self.encoder(audio_signal=noisy, length=noisy_length)
        return self.decoder(encoder_output=encoded), encoded_length, masks, tokens

    def _features(
        self, name: str, signal: Tensor | None, length: Tensor | None, features: Tensor | None, frames: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the given features, or compute them from samples; exactly one of the two must be given."""
        if (signal is not None and length is not None) == (features is not None and frames is not None):
            processed = f"processed_{name.removeprefix('input_')}"
            raise ValueError(f"give either {name} and {name}_length or {processed} and {processed}_length")
        if features is not None and frames is not None:
            return features, frames
        return self.preprocessor(input_signal=signal, length=length)

    def _tokens_after_subsampling(self, clean: Tensor, length: Tensor) -> Tensor:
        assert self.pre_encoder is not None
        with torch.no_grad():
            frames, _ = self.pre_encoder.pre_encode(x=clean.transpose(1, 2), lengths=length)  # (B, D, T) -> (B, T, D)
        return self.quantizer(input_signal=frames.transpose(1, 2))  # (B, U, D) -> (B, D, U)

    def reasons_for_exact(self) -> list[str]:
        """Return the settings of this model that `numerics: fast` does not support."""
        from nest_ssl.model import fast

        position = self.settings.get("mask_position", MODEL_DEFAULTS["mask_position"])
        return fast.reasons_for_exact(self.parts, position)

    def _can_be_fast(self) -> bool:
        reasons = self.reasons_for_exact()
        if reasons:
            _log.warning("model.numerics: fast cannot do %s; training with exact", ", ".join(reasons))
        return not reasons

    def predict_masked(self, batch: NoisyBatch) -> MaskedPrediction:
        """Mask a batch and predict the tokens of the masked frames."""
        if self.fast:
            from nest_ssl.model import fast  # not loaded by `exact`

            over_padding = self.settings.get("batch_norm_over_padding", MODEL_DEFAULTS["batch_norm_over_padding"])
            return fast.predict_masked(self.parts, batch, over_padding)
        log_probs, encoded_length, masks, tokens = self.forward(
            input_signal=batch.audio,
            input_signal_length=batch.audio_len,
            noise_signal=batch.noise,
            noise_signal_length=batch.noise_len,
            noisy_input_signal=batch.noisy_audio,
            noisy_input_signal_length=batch.noisy_audio_len,
            apply_mask=True,
        )
        scored = self.loss.scored_frames(masks, log_probs.shape[1])
        loss = self.loss(masks, log_probs, tokens, selected=scored)
        if log_probs.dim() == 3:  # squeezed
            log_probs, tokens = log_probs.unsqueeze(-1), tokens.unsqueeze(-1)
        frames = scored.shape[1]
        return MaskedPrediction(
            loss=loss,
            masked=bool(scored.any()),
            mask=masks[:, 0] > 0,
            scored=scored,
            lengths=encoded_length,
            outputs=log_probs.detach()[:, :frames],
            tokens=nn.functional.pad(tokens, (0, 0, 0, frames - tokens.shape[1])),
        )
