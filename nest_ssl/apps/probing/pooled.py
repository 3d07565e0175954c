"""Pool utterances to single vectors: mean and deviation over time, of each layer or of log-mel features."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from nest_ssl.apps.features import Encoder
from nest_ssl.apps.features.utterances import batches_by_duration
from nest_ssl.data.manifest import Seconds

BATCH_SECONDS: Seconds = 30.0
Tick = Callable[[Seconds], None]


def pooled_layers(encoder: Encoder, waveforms: Sequence[Tensor], tick: Tick) -> np.ndarray:
    """Encode waveforms and pool each layer: (N, layers, 2 * D)."""
    layers = _layers(encoder)
    seconds = [len(waveform) / encoder.sample_rate for waveform in waveforms]
    vectors: dict[int, np.ndarray] = {}
    for batch in batches_by_duration(seconds, BATCH_SECONDS):
        encoded = encoder.encode([waveforms[index] for index in batch], layers)
        for index, outputs in zip(batch, encoded, strict=True):
            vectors[index] = torch.stack([_pooled(output) for output in outputs]).numpy()
        tick(sum(seconds[index] for index in batch))
    return np.stack([vectors[index] for index in range(len(waveforms))])


def pooled_log_mel(encoder: Encoder, waveforms: Sequence[Tensor]) -> np.ndarray:
    """Pool the model's log-mel features: (N, 1, 2 * D). They are not normalised, because that removes the mean."""
    preprocessor = copy.deepcopy(encoder.model.preprocessor).cpu()
    preprocessor.normalize = None
    vectors = []
    for waveform in waveforms:
        features, frames = preprocessor(input_signal=waveform.unsqueeze(0), length=torch.tensor([len(waveform)]))
        vectors.append(_pooled(features[0, :, : int(frames)].T).numpy())
    return np.stack(vectors)[:, np.newaxis]


def _pooled(frames: Tensor) -> Tensor:
    """(U, D) -> (2 * D)."""
    return torch.cat((frames.mean(dim=0), frames.std(dim=0, correction=0)))


def _layers(encoder: Encoder) -> list[int]:
    """Return all layers, or only the last if they differ in size."""
    uneven = encoder.encoder.reduction_position is not None or encoder.encoder.out_proj is not None
    return [encoder.last_layer] if uneven else list(range(encoder.last_layer + 1))
