"""The model that was exported, as it is: what every file is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from nest_ssl.apps.export.interface import Interface
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel


@torch.no_grad()
def encode_eagerly(
    model: EncDecDenoiseMaskedTokenPredModel, interface: Interface, x: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """(B, S) or (B, D, T), and (B), to (B, D, U) and (B); from audio with `torch.stft`."""
    if interface.kind == "audio":
        x, lengths = model.preprocessor(input_signal=x, length=lengths)
    return model.encoder(audio_signal=x, length=lengths)
