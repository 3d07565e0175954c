"""An utterance with its noise, a batch of them, and how the one becomes the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(kw_only=True)
class AudioNoiseItem:
    """One utterance (S) and the noise (S) drawn for it; lengths are int64 scalars."""

    sample_id: str
    audio: Tensor
    audio_len: Tensor
    noise: Tensor
    noise_len: Tensor
    skipped: int = 0  # files that could not be read and in whose place this one stands


@dataclass(kw_only=True)
class AudioNoiseBatch:
    """Clean, noise and noisy signals (B, S), zero after their lengths (B); what is noisy is empty until it is mixed."""

    sample_id: list[str] = field(default_factory=list)
    audio: Tensor
    audio_len: Tensor
    noise: Tensor
    noise_len: Tensor
    noisy_audio: Tensor = field(default_factory=lambda: torch.empty(0))
    noisy_audio_len: Tensor = field(default_factory=lambda: torch.empty(0))
    skipped: int = 0  # audio files replaced in this batch because they could not be read

    def pin_memory(self) -> AudioNoiseBatch:
        """Called by the DataLoader: copies to a GPU can then run beside computation."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.pin_memory())
        return self


BatchAugmentor = Callable[[AudioNoiseBatch], AudioNoiseBatch]


def collate_audio_noise(items: Sequence[AudioNoiseItem], batch_augmentor: BatchAugmentor | None) -> AudioNoiseBatch:
    """Pad to the longest utterance, cutting longer noise, and mix: by the augmentor, or plainly where there is none."""
    longest = max(len(item.audio) for item in items)
    batch = AudioNoiseBatch(
        sample_id=[item.sample_id for item in items],
        audio=_padded([item.audio for item in items], longest),
        audio_len=torch.stack([item.audio_len for item in items]),
        noise=_padded([item.noise for item in items], longest),
        noise_len=torch.stack([item.noise_len for item in items]),
        skipped=sum(item.skipped for item in items),
    )
    if batch_augmentor is not None:
        return batch_augmentor(batch)
    return dataclasses.replace(batch, noisy_audio=batch.audio + batch.noise, noisy_audio_len=batch.audio_len)


def _padded(signals: Sequence[Tensor], length: int) -> Tensor:
    """Signals of any lengths as one (B, S) tensor, cut or followed by zeros."""
    padded = torch.zeros(len(signals), length)
    for row, signal in zip(padded, signals, strict=True):
        row[: len(signal)] = signal[:length]
    return padded
