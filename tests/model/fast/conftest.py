"""Fixtures that compute one model on one batch with both numerics."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nest_ssl.data import AudioNoiseBatch
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

CONFIG = Path(__file__).parents[3] / "config" / "nest_fast-conformer.yaml"
NOTHING_RANDOM = [
    "model.preprocessor.dither=0",
    *(f"model.encoder.dropout{part}=0" for part in ("", "_pre_encoder", "_emb", "_att")),
]


@dataclass(frozen=True)
class Step:
    """The results of a step: the loss, all gradients, and the running statistics of batch norm."""

    loss: float
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]

    def distance(self, truth: Step) -> float:
        """Return the distance of all gradients together."""
        return (
            sum(
                float((self.gradients[name].double() - true.double()).square().sum())
                for name, true in truth.gradients.items()
            )
            ** 0.5
        )


def build(numerics: str, overrides: Sequence[str] = (), seed: int = 0) -> EncDecDenoiseMaskedTokenPredModel:
    """Return a small model whose biases and norms differ from their initial zeros and ones."""
    torch.manual_seed(seed)
    cfg = small_config(CONFIG, [f"model.numerics={numerics}", *overrides]).model
    model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.5)
    return model.train()


def make_batch(lengths: Sequence[int], seed: int = 0) -> AudioNoiseBatch:
    """Return a batch of noise with these lengths in samples; padding is not silent, to show that it is ignored."""
    generator = torch.Generator().manual_seed(seed)
    clean = 0.1 * torch.randn(len(lengths), max(lengths), generator=generator)
    noisy = clean + 0.02 * torch.randn(clean.shape, generator=generator)
    count = torch.tensor(lengths)
    return AudioNoiseBatch(
        audio=clean, audio_len=count, noise=clean, noise_len=count, noisy_audio=noisy, noisy_audio_len=count
    )


def fix_mask(model: EncDecDenoiseMaskedTokenPredModel, seed: int = 0, share: float = 0.02) -> None:
    """Mask the same frames for all numerics and precisions, because torch's draws depend on them."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.rand(8, 1, 1000, generator=generator) < share
    blocks = torch.nn.functional.max_pool1d(torch.nn.functional.pad(starts.float(), (47, 0)), 48, stride=1)
    drawn = blocks.squeeze(1).bool()  # (B, T)

    def blocks_of(lengths: Tensor, frames: int) -> Tensor:
        return drawn[: len(lengths), :frames] & (torch.arange(frames) < lengths.unsqueeze(1))

    model.mask_processor.blocks = blocks_of  # type: ignore[method-assign]


def take_step(
    model: EncDecDenoiseMaskedTokenPredModel, batch: AudioNoiseBatch, dtype: torch.dtype = torch.float32, seed: int = 1
) -> Step:
    """Compute one step, always with the same random numbers."""
    model = model.to(dtype)
    model.zero_grad()
    torch.manual_seed(seed)
    random.seed(seed)  # chooses one of several attention contexts
    signals = {name: getattr(batch, name).to(dtype, copy=True) for name in ("audio", "noise", "noisy_audio")}
    lengths = {name: getattr(batch, name) for name in ("audio_len", "noise_len", "noisy_audio_len")}
    with default_type(dtype):
        loss = model.predict_masked(AudioNoiseBatch(**signals, **lengths)).loss
        loss.backward()
    return Step(
        loss.item(),
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name},
    )


@contextlib.contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """Set the default type as Lightning does for `trainer.precision=64`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
