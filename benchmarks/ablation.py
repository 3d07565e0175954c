"""Measure what each part of `model.numerics: fast` saves: a step with all parts, and steps without one of them.

All variants run in turn in one process, on the same batches. The plain computation replaces the missing part, so the
results are equal up to rounding, except for parts that skip work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn

from nest_ssl.data import AudioNoiseBatch
from nest_ssl.model import AudioToMelSpectrogramPreprocessor, RandomBlockMasking
from nest_ssl.model.conformer.subsampling import Conv2d
from nest_ssl.model.fast import attention, convolution, encoder, subsampling
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

Without = Callable[[], AbstractContextManager[object]]


def _torch_dropout(x: Tensor, module: nn.Dropout) -> Tensor:
    return module(x)


def _one_dimension(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return nn.functional.conv1d(x.t().unsqueeze(0), weight, bias, groups=x.shape[1])[0].t()


def _as_convolution(layer: Conv2d, features: Tensor) -> tuple[Tensor, int]:
    image = layer(features.unsqueeze(0).unsqueeze(0))  # (T, D) -> (1, C, T, F)
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1]), image.shape[2]


def _all_masked(masking: RandomBlockMasking, lengths: Tensor, frames: int) -> Tensor:
    return torch.arange(frames, device=lengths.device) < lengths.unsqueeze(1)  # (B, T)


@contextlib.contextmanager
def _plain_dropout() -> Iterator[None]:
    with patch.object(encoder, "drop", _torch_dropout), patch.object(attention, "drop", _torch_dropout):
        yield


PADDING, FUSED = "padding left out", "optimizer in one kernel"
PARTS: dict[str, Without] = {
    PADDING: contextlib.nullcontext,  # `_as_long_as_the_longest` changes the batch
    "tokens, decoder and loss for masked frames only": lambda: patch.object(RandomBlockMasking, "blocks", _all_masked),
    "attention within each clip": lambda: patch.object(
        attention.AttentionMask, "of", partial(attention.AttentionMask.of, together=True)
    ),
    "sub-sampling of each clip by itself": lambda: patch.object(subsampling, "_one_by_one", subsampling._padded),
    "its first convolution as a product": lambda: patch.object(subsampling, "_as_product", _as_convolution),
    "depthwise convolution along rows": lambda: patch.object(convolution, "_along_rows", _one_dimension),
    "dropout from fewer random numbers": _plain_dropout,
    "features of valid frames only": lambda: patch.object(AudioToMelSpectrogramPreprocessor, "packable", False),
    FUSED: contextlib.nullcontext,
}


def seconds_of_steps(
    model: EncDecDenoiseMaskedTokenPredModel, batches: list[AudioNoiseBatch], rounds: int
) -> dict[str | None, float]:
    """Return the seconds of a step over these batches for each missing part; the key None means all parts."""
    optimizers = {fused: torch.optim.AdamW(model.parameters(), lr=1e-6, fused=fused) for fused in (True, False)}
    seconds: dict[str | None, list[float]] = {variant: [] for variant in (None, *PARTS)}
    for number in range(rounds + 1):  # the first round allocates memory that the others use
        for variant, times in seconds.items():
            used = [_as_long_as_the_longest(batch) for batch in batches] if variant == PADDING else batches
            optimizer = optimizers[variant != FUSED]
            with PARTS[variant]() if variant else contextlib.nullcontext():
                began = time.perf_counter()
                for batch in used:
                    _step(model, batch, optimizer)
                spent = time.perf_counter() - began
            if number:
                times.append(spent / len(batches))
    return {variant: statistics.median(times) for variant, times in seconds.items()}


def _step(model: EncDecDenoiseMaskedTokenPredModel, batch: AudioNoiseBatch, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss = model.predict_masked(batch).loss
    loss.backward()
    optimizer.step()


def _as_long_as_the_longest(batch: AudioNoiseBatch) -> AudioNoiseBatch:
    """Return the batch with padding counted as audio, which gives the cost of a step that does not skip padding."""
    longest = torch.full_like(batch.audio_len, batch.audio.shape[1])
    return dataclasses.replace(batch, audio_len=longest, noisy_audio_len=longest)
