"""What is exported: the encoder in eval mode, with or without its log-mel, without limits that tracing would keep."""

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
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

Kind = Literal["audio", "features"]


class FeatureEncoder(nn.Module):
    """Features to encoded frames; the argument names become the inputs' names, and are NeMo's."""

    def __init__(self, encoder: ConformerEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, T), (B) -> (B, D, U), (B)."""
        return self.encoder(audio_signal, length)


class AudioEncoder(nn.Module):
    """Waveforms to encoded frames."""

    def __init__(self, log_mel: ExportableLogMel, encoder: ConformerEncoder) -> None:
        super().__init__()
        self.log_mel = log_mel
        self.encoder = encoder

    def forward(self, input_signal: Tensor, input_signal_length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S), (B) -> (B, D, U), (B)."""
        return self.encoder(*self.log_mel.features(input_signal, input_signal_length))


class AnyLengthPositions(nn.Module):
    """Positions computed for the sequence at hand: a table would limit its length and make the file larger."""

    def __init__(self, positions: PositionalEncoding) -> None:
        super().__init__()
        self.positions = positions.positions
        self.relative = isinstance(positions, RelPositionalEncoding)
        self.d_model = positions.d_model
        self.xscale = positions.xscale

    def extend(self, length: int, like: Tensor) -> None:
        """There is no table to extend."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, U, D) -> the encoder's input (B, U, D) and the positions used (1, positions, D)."""
        if self.xscale:
            x = x * self.xscale
        embedding = sinusoids(self.positions(x.shape[1], x.device), self.d_model).unsqueeze(0)
        return x if self.relative else x + embedding, embedding


class WholeBatchSubsampling(ConvSubsampling):
    """The same convolutions, never in pieces: into how many, depends on sizes that are not known yet."""

    def __init__(self, subsampling: ConvSubsampling) -> None:
        nn.Module.__init__(self)
        self.conv = subsampling.conv
        self.out = subsampling.out

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = self.convolve(x, lengths)
        return self.out(x.transpose(1, 2).flatten(2)), lengths  # (B, C, U, F) -> (B, U, C * F)


def exportable(model: EncDecDenoiseMaskedTokenPredModel, kind: Kind) -> FeatureEncoder | AudioEncoder:
    """A network that computes what `model.encoder` does in eval mode; the model is left as it is."""
    encoder = _exportable_encoder(model.encoder)
    if kind == "features":
        return FeatureEncoder(encoder).eval()
    _refuse_unusual_log_mel(model)
    settings = {name: value for name, value in model.settings["preprocessor"].items() if name != "_target_"}
    return AudioEncoder(ExportableLogMel(settings, model.preprocessor.state_dict()), encoder).eval()


def frame_ratio(encoder: ConformerEncoder, features: int) -> int:
    """Feature frames in one encoded frame, whatever combination of settings makes it so."""
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
        encoder.pre_encode = encoder.pre_encode.pre_encode  # nothing is masked here
    for module in list(encoder.modules()):
        for name, child in module.named_children():
            if isinstance(child, ConvSubsampling):
                setattr(module, name, WholeBatchSubsampling(child))
            elif isinstance(child, MultiHeadAttention):
                child.sdpa_backends = []  # a choice of this machine's kernels
    return encoder


def _refuse_unusual_log_mel(model: EncDecDenoiseMaskedTokenPredModel) -> None:
    """Name settings that work through an utterance in a way that a graph for all lengths cannot follow."""
    unusual = {
        "normalize: all_features": model.preprocessor.normalize == "all_features",
        "exact_pad: true": model.preprocessor.edge_padding is not None,
    }
    for setting, there in unusual.items():
        if there:
            raise NestError(f"model.preprocessor.{setting} cannot be exported; use --input features")
