"""An utterance with its noise, a batch of them, and the collation that makes batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nest_ssl.data.problems import Problem


@dataclass(kw_only=True)
class AudioNoiseItem:
    """One utterance (S) and the noise (S) drawn for it; lengths are int64 scalars."""

    sample_id: str
    audio: Tensor
    audio_len: Tensor
    noise: Tensor
    noise_len: Tensor
    problems: tuple[Problem, ...] = ()  # of its audio, and of skipped audio that it replaces


@dataclass(kw_only=True)
class AudioNoiseBatch:
    """Clean, noise and noisy signals (B, S), zero after their lengths (B); noisy audio is undefined until mixing."""

    sample_id: list[str] = field(default_factory=list)
    audio: Tensor
    audio_len: Tensor
    noise: Tensor
    noise_len: Tensor
    noisy_audio: Tensor = field(default_factory=lambda: torch.empty(0))
    noisy_audio_len: Tensor = field(default_factory=lambda: torch.empty(0))
    problems: tuple[Problem, ...] = ()  # of all audio read for it

    @property
    def skipped(self) -> int:
        """The number of skipped utterances, which others replace."""
        return sum(problem.outcome == "skipped" for problem in self.problems)

    def pin_memory(self) -> AudioNoiseBatch:
        """Pin all tensors (called by the DataLoader), so that copies to a GPU run in parallel with computation."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.pin_memory())
        return self


BatchAugmentor = Callable[[AudioNoiseBatch], AudioNoiseBatch]


def collate_audio_noise(items: Sequence[AudioNoiseItem], batch_augmentor: BatchAugmentor | None) -> AudioNoiseBatch:
    """Pad to the longest utterance, cut longer noise, and mix: by the augmentor or, without one, by adding noise."""
    longest = max(len(item.audio) for item in items)
    # One allocation: malloc reuses it for the next batch. Three smaller ones would be returned to the system, and
    # getting new pages from it takes five times as long as filling them.
    audio, noise, noisy_audio = torch.empty(3, len(items), longest)
    batch = AudioNoiseBatch(
        sample_id=[item.sample_id for item in items],
        audio=_fill(audio, [item.audio for item in items]),
        audio_len=torch.stack([item.audio_len for item in items]),
        noise=_fill(noise, [item.noise for item in items]),
        noise_len=torch.stack([item.noise_len for item in items]),
        noisy_audio=noisy_audio,
        problems=tuple(problem for item in items for problem in item.problems),
    )
    if batch_augmentor is not None:
        return batch_augmentor(batch)
    torch.add(audio, noise, out=noisy_audio)
    return dataclasses.replace(batch, noisy_audio_len=batch.audio_len)


def _fill(rows: Tensor, signals: Sequence[Tensor]) -> Tensor:
    """Copy signals of any length into (B, S), cut or padded with zeros."""
    for row, signal in zip(rows, signals, strict=True):
        row[: len(signal)] = signal[: len(row)]
        row[len(signal) :] = 0
    return rows
