"""Masked prediction that computes tokens, decoder and softmax for the scored frames only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nest_ssl.model.fast.encoder import encode
from nest_ssl.model.fast.features import packed_features
from nest_ssl.model.fast.packing import Packing
from nest_ssl.model.fast.subsampling import subsample
from nest_ssl.model.prediction import MaskedPrediction, NoisyBatch

if TYPE_CHECKING:
    from nest_ssl.model.build import Parts


def predict_masked(parts: Parts, batch: NoisyBatch, padding_counts: bool = True) -> MaskedPrediction:
    """Return the loss of a batch and the predictions of its scored frames."""
    with torch.no_grad():
        clean, clean_packing = _features(parts, batch.audio, batch.audio_len)
        noisy, packing = _features(parts, batch.noisy_audio, batch.noisy_audio_len)
        lengths = torch.tensor(packing.lengths, device=noisy.device)
        mask = parts.mask_processor.blocks(lengths, packing.padded)  # (B, T)
    noisy = torch.where(packing.pack(mask).unsqueeze(1), parts.mask_processor.mask_embedding, noisy)
    x, encoded = subsample(parts.encoder.pre_encode, noisy, packing)
    with torch.no_grad():
        selected = parts.loss.scored_frames(mask.unsqueeze(1).to(noisy.dtype), encoded.padded)  # (B, U)
        utterance, frame = selected.nonzero(as_tuple=True)
        targets = _tokens(parts, clean_packing.unpack(clean), utterance, frame)
        starts = torch.tensor([0, *encoded.lengths], device=x.device).cumsum(0)
    x = encode(parts.encoder, x, encoded, wanted=starts[utterance] + frame, padding_counts=padding_counts)
    loss, logits = _likelihood(parts, x, targets)
    return MaskedPrediction(
        loss=loss,
        masked=len(frame) > 0,
        mask=mask,
        scored=selected,
        lengths=starts.diff(),
        outputs=logits.detach(),
        tokens=targets,
    )


def encode_batch(parts: Parts, signal: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Return the sub-sampled and the encoded frames (N, D) of all utterances, and how many each has, for (B, S)."""
    features, packing = _features(parts, signal, lengths)
    x, encoded = subsample(parts.encoder.pre_encode, features, packing)
    every_row = torch.arange(len(x), device=x.device)
    return x, encode(parts.encoder, x, encoded, wanted=every_row, padding_counts=False), encoded.lengths


def _features(parts: Parts, signal: Tensor, lengths: Tensor) -> tuple[Tensor, Packing]:
    """Compute features (N, D) from waveforms (B, S); rare options and float64 use the code of `exact`."""
    preprocessor = parts.preprocessor
    if not preprocessor.packable or preprocessor.featurizer.fb.dtype != torch.float32:
        padded, frames = preprocessor(input_signal=signal, length=lengths)
        packing = Packing(_counts(frames), padded.shape[2], padded.device)
        return packing.pack(padded.transpose(1, 2)), packing  # (B, D, T) -> (B, T, D) -> (N, D)
    frames = preprocessor.frames(lengths)
    packing = Packing(_counts(frames), preprocessor.padded_frames(signal.shape[1]), signal.device)
    return packed_features(preprocessor, signal, lengths.tolist(), packing), packing


def _counts(frames: Tensor) -> tuple[int, ...]:
    """Return the frames of each utterance; with `exact_pad`, NeMo's formula is negative for very few samples."""
    return tuple(frames.clamp(min=0).tolist())


def _tokens(parts: Parts, clean: Tensor, utterance: Tensor, frame: Tensor) -> Tensor:
    """Return the tokens (M, K) of some encoder frames from features (B, T, D), without autocast."""
    quantizer = parts.quantizer
    stacked = clean.view(len(clean), clean.shape[1] // quantizer.combine_time_steps, -1)  # (B, U, D * steps)
    with torch.autocast(clean.device.type, enabled=False):
        return quantizer.tokens(stacked[utterance, frame].unsqueeze(0)).squeeze(0)


def _likelihood(parts: Parts, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss and the logits (M, V, K) of encoded frames (M, D) and their tokens (M, K)."""
    decoder = parts.decoder
    layer: nn.Conv1d = decoder.decoder_layers[0]  # type: ignore[assignment]
    logits = nn.functional.linear(x, layer.weight.squeeze(-1), layer.bias)
    logits = logits.view(-1, decoder.num_classes, decoder.num_decoders)
    return nn.functional.cross_entropy(logits, targets, reduction="mean" if len(targets) else "sum"), logits
