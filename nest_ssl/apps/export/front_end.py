"""Log-mel for exported files: as the model's, except for two steps that exporters cannot write for any length.

The Fourier transform becomes a convolution with its waves. Every runtime has convolutions, and the result is as
accurate as torch's in float32 (docs/export.md has the figures). The frames that `pad_to` adds come from added silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nest_ssl.model import AudioToMelSpectrogramPreprocessor


class ExportableLogMel(AudioToMelSpectrogramPreprocessor):
    """Turns waveforms (B, S) into features (B, D, T), with the model's settings, window and filters."""

    waves: Tensor

    def __init__(self, settings: Mapping[str, Any], tables: Mapping[str, Tensor]) -> None:
        super().__init__(**settings)
        self.load_state_dict(tables)
        self._frames_to, self.pad_to = max(1, self.pad_to), 0
        window = self.featurizer.window
        window = torch.ones(self.win_length) if window is None else window.float()
        self.register_buffer("waves", windowed_waves(self.n_fft, window), persistent=False)
        self.eval()

    def power_spectrum(self, x: Tensor) -> Tensor:
        """(B, S) -> (B, bins, T), T a multiple of `pad_to` in the settings."""
        samples, edge = x.shape[1], self.n_fft // 2
        frames = self._frames_to * (samples // (self.hop_length * self._frames_to) + 1)
        silence = frames * self.hop_length - samples - 1  # never negative, and too short for one more frame
        x = nn.functional.pad(x, (edge, edge + silence)).unsqueeze(1)  # (B, S) -> (B, 1, S)
        real, imaginary = nn.functional.conv1d(x, self.waves, stride=self.hop_length).chunk(2, dim=1)
        x = (real.pow(2) + imaginary.pow(2)).sqrt()
        return x if self.mag_power == 1.0 else x.pow(self.mag_power)


def windowed_waves(n_fft: int, window: Tensor) -> Tensor:
    """Return cosines, then sines, of every frequency, times the centred window (2 * bins, 1, n_fft)."""
    before = (n_fft - len(window)) // 2
    window = nn.functional.pad(window.double(), (before, n_fft - len(window) - before))
    turns = torch.outer(torch.arange(n_fft // 2 + 1), torch.arange(n_fft)) % n_fft  # integers: no rounding error yet
    angles = turns.double() * (2 * math.pi / n_fft)
    return (torch.cat((angles.cos(), -angles.sin())) * window).float().unsqueeze(1)
