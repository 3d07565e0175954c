"""Build the network to export: the encoder in eval mode, with or without log-mel, for inputs of any size.

Two steps of log-mel cannot be exported for any length. The Fourier transform becomes a convolution with its waves:
every runtime has convolutions, and the result is as accurate as torch's in float32 (docs/export.md has the figures).
The frames that `pad_to` adds come from added silence.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nest_ssl.errors import NestError
from nest_ssl.model import AudioToMelSpectrogramPreprocessor, ConformerEncoder
from nest_ssl.model.conformer.attention import MultiHeadAttention
from nest_ssl.model.conformer.positions import PositionalEncoding, RelPositionalEncoding, sinusoids
from nest_ssl.model.conformer.subsampling import ConvSubsampling
from nest_ssl.model.masking import ConvFeatureMaksingWrapper
from nest_ssl.model.nest import Nest

Kind = Literal["audio", "features"]


class ExportableLogMel(AudioToMelSpectrogramPreprocessor):
    """Turns waveforms (B, S) into features (B, D, T), with the model's settings, window and filters."""

    waves: Tensor

    def __init__(self, settings: Mapping[str, Any], tables: Mapping[str, Tensor]) -> None:
        super().__init__(**settings)
        self.load_state_dict(tables)
        self._frames_to, self.pad_to = max(1, self.pad_to), 0
        window = self.featurizer.window
        window = torch.ones(self.win_length) if window is None else window.float()
        self.register_buffer("waves", _windowed_waves(self.n_fft, window), persistent=False)
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


class AudioEncoder(nn.Module):
    """Encodes waveforms: log-mel, then the encoder."""

    def __init__(self, log_mel: ExportableLogMel, encoder: ConformerEncoder) -> None:
        super().__init__()
        self.log_mel = log_mel
        self.encoder = encoder

    def forward(self, input_signal: Tensor, input_signal_length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S), (B) -> (B, D, U), (B)."""
        return self.encoder(*self.log_mel.features(input_signal, input_signal_length))


class AnyLengthPositions(nn.Module):
    """Computes the positions of each sequence: a table would limit the length and make the file larger."""

    def __init__(self, positions: PositionalEncoding) -> None:
        super().__init__()
        self.positions = positions.positions
        self.relative = isinstance(positions, RelPositionalEncoding)
        self.d_model = positions.d_model
        self.xscale = positions.xscale

    def extend(self, length: int, like: Tensor) -> None:
        """Do nothing: there is no table to extend."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoder's input (B, U, D) and the positions used (1, positions, D)."""
        if self.xscale:
            x = x * self.xscale
        embedding = sinusoids(self.positions(x.shape[1], x.device), self.d_model).unsqueeze(0)
        return x if self.relative else x + embedding, embedding


class WholeBatchSubsampling(ConvSubsampling):
    """Applies the same convolutions, never in chunks: the number of chunks depends on sizes unknown to tracing."""

    def __init__(self, subsampling: ConvSubsampling) -> None:
        nn.Module.__init__(self)
        self.conv = subsampling.conv
        self.out = subsampling.out

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = self.convolve(x, lengths)
        return self.out(x.transpose(1, 2).flatten(2)), lengths  # (B, C, U, F) -> (B, U, C * F)


def exportable(model: Nest, kind: Kind) -> ConformerEncoder | AudioEncoder:
    """Return a network that computes what `model.encoder` computes in eval mode; the model is not changed.

    The names of its arguments, which are NeMo's, become the names of the file's inputs.
    """
    encoder = _exportable_encoder(model.encoder).eval()
    if kind == "features":
        return encoder
    _refuse_unusual_log_mel(model)
    settings = {name: value for name, value in model.settings["preprocessor"].items() if name != "_target_"}
    return AudioEncoder(ExportableLogMel(settings, model.preprocessor.state_dict()), encoder).eval()


def frame_ratio(encoder: ConformerEncoder, features: int) -> int:
    """Measure how many feature frames one encoded frame has."""
    frames = 1024
    with torch.no_grad():
        encoded, _ = encoder(torch.zeros(1, features, frames), torch.tensor([frames]))
    return round(frames / encoded.shape[2])


def _windowed_waves(n_fft: int, window: Tensor) -> Tensor:
    """Return cosines, then sines, of every frequency, times the centred window (2 * bins, 1, n_fft)."""
    before = (n_fft - len(window)) // 2
    window = nn.functional.pad(window.double(), (before, n_fft - len(window) - before))
    turns = torch.outer(torch.arange(n_fft // 2 + 1), torch.arange(n_fft)) % n_fft  # integers: no rounding error yet
    angles = turns.double() * (2 * math.pi / n_fft)
    return (torch.cat((angles.cos(), -angles.sin())) * window).float().unsqueeze(1)


def _exportable_encoder(encoder: nn.Module) -> ConformerEncoder:
    if not isinstance(encoder, ConformerEncoder):
        raise NestError(f"the encoder is a {type(encoder).__module__}, not ours; unset USE_NEMO_CONFORMER to export")
    encoder = copy.deepcopy(encoder).requires_grad_(False)
    encoder.pos_enc = AnyLengthPositions(encoder.pos_enc)  # type: ignore[assignment]
    if isinstance(encoder.pre_encode, ConvFeatureMaksingWrapper):
        encoder.pre_encode = encoder.pre_encode.pre_encode  # without masking
    for module in list(encoder.modules()):
        for name, child in module.named_children():
            if isinstance(child, ConvSubsampling):
                setattr(module, name, WholeBatchSubsampling(child))
            elif isinstance(child, MultiHeadAttention):
                child.sdpa_backends = []  # chosen for the kernels of this machine
    return encoder


def _refuse_unusual_log_mel(model: Nest) -> None:
    """Refuse settings whose computation depends on the length in a way that a single graph cannot express."""
    unusual = {
        "normalize: all_features": model.preprocessor.normalize == "all_features",
        "exact_pad: true": model.preprocessor.edge_padding is not None,
    }
    for setting, there in unusual.items():
        if there:
            raise NestError(f"model.preprocessor.{setting} cannot be exported; use --input features")
