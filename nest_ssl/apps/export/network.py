"""Build the network to export: the encoder in eval mode, with or without log-mel, for inputs of any size."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from nest_ssl.apps.export.front_end import ExportableLogMel
from nest_ssl.errors import NestError
from nest_ssl.model import ConformerEncoder
from nest_ssl.model.conformer.attention import MultiHeadAttention
from nest_ssl.model.conformer.positions import PositionalEncoding, RelPositionalEncoding, sinusoids
from nest_ssl.model.conformer.subsampling import ConvSubsampling
from nest_ssl.model.masking import ConvFeatureMaksingWrapper
from nest_ssl.model.nest import Nest

Kind = Literal["audio", "features"]


class FeatureEncoder(nn.Module):
    """Encodes features; the argument names become the names of the inputs, and are NeMo's."""

    def __init__(self, encoder: ConformerEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, T), (B) -> (B, D, U), (B)."""
        return self.encoder(audio_signal, length)


class AudioEncoder(nn.Module):
    """Encodes waveforms."""

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


def exportable(model: Nest, kind: Kind) -> FeatureEncoder | AudioEncoder:
    """Return a network that computes what `model.encoder` computes in eval mode; the model is not changed."""
    encoder = _exportable_encoder(model.encoder)
    if kind == "features":
        return FeatureEncoder(encoder).eval()
    _refuse_unusual_log_mel(model)
    settings = {name: value for name, value in model.settings["preprocessor"].items() if name != "_target_"}
    return AudioEncoder(ExportableLogMel(settings, model.preprocessor.state_dict()), encoder).eval()


def frame_ratio(encoder: ConformerEncoder, features: int) -> int:
    """Measure how many feature frames one encoded frame has."""
    frames = 1024
    with torch.no_grad():
        encoded, _ = encoder(torch.zeros(1, features, frames), torch.tensor([frames]))
    return round(frames / encoded.shape[2])


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
