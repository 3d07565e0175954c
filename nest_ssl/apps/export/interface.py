"""The inputs and outputs of an exported file: names, axes, shortest input, random inputs for the check, metadata."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

import nest_ssl
from nest_ssl.apps.export.network import Kind, frame_ratio
from nest_ssl.data.audio.sample_rate import sample_rate_of
from nest_ssl.model import AudioToMelSpectrogramPreprocessor, ConformerEncoder
from nest_ssl.model.nest import Nest

OUTPUTS = ("outputs", "encoded_lengths")  # (B, D, U) and (B); NeMo's names
_NAMES = {"audio": ("input_signal", "input_signal_length"), "features": ("audio_signal", "length")}
_EXAMPLE_SECONDS = 2.0
# At least 2: with a single frame, tracing treats the axis as a constant.
_FEWEST_ENCODED = 2


@dataclass(frozen=True)
class Interface:
    """The inputs of an exported encoder. Lengths are in steps: samples of audio, or frames of features."""

    kind: Kind
    features: int
    sample_rate: int
    hop_length: int  # samples in one feature frame
    frame_ratio: int  # feature frames in one encoded frame
    known_positions: int  # feature frames in the model's table of positions, which it extends when needed

    @classmethod
    def of(cls, model: Nest, kind: Kind) -> Interface:
        features = model.preprocessor.featurizer.fb.shape[1] * model.preprocessor.frame_splicing
        return cls(
            kind=kind,
            features=features,
            sample_rate=int(sample_rate_of(model.settings["preprocessor"])),
            hop_length=model.preprocessor.hop_length,
            frame_ratio=frame_ratio(model.encoder, features),
            known_positions=int(model.settings["encoder"].get("pos_emb_max_len", 5000)),
        )

    @property
    def names(self) -> tuple[str, str]:
        return _NAMES[self.kind]

    @property
    def steps_in_frame(self) -> int:
        return self.hop_length if self.kind == "audio" else 1

    @property
    def shortest(self) -> int:
        """The least number of steps of a batch; shorter utterances are padded, and their true length is an input."""
        return _FEWEST_ENCODED * self.frame_ratio * self.steps_in_frame

    @property
    def seconds_per_frame(self) -> float:
        """Seconds per encoded frame."""
        return self.frame_ratio * self.hop_length / self.sample_rate

    def steps(self, seconds: float) -> int:
        return int(seconds * self.sample_rate) * self.steps_in_frame // self.hop_length

    def example(self) -> tuple[Tensor, Tensor]:
        """Return the input for tracing."""
        length = max(self.steps(_EXAMPLE_SECONDS), 4 * self.shortest)
        return self.batch([length, length - self.shortest], torch.Generator().manual_seed(0))

    def batch(self, lengths: Sequence[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return noise of these lengths, also in the padding, which must not influence the result."""
        steps = max(lengths)
        shape = (len(lengths), steps) if self.kind == "audio" else (len(lengths), self.features, steps)
        scale = 0.1 if self.kind == "audio" else 1.0  # as loud as speech; features are normalised
        return scale * torch.randn(shape, generator=generator), torch.tensor(list(lengths))

    def dynamic_shapes(self) -> dict[str, Any]:
        signal, length = self.names
        batch = Dim("batch")
        time = Dim("samples" if self.kind == "audio" else "frames", min=self.shortest)
        return {signal: {0: batch, 1 if self.kind == "audio" else 2: time}, length: {0: batch}}


@torch.no_grad()
def encode_eagerly(model: Nest, interface: Interface, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Encode with the model itself: audio (B, S) or features (B, D, T), and lengths (B), to (B, D, U) and (B)."""
    if interface.kind == "audio":
        x, lengths = model.preprocessor(input_signal=x, length=lengths)
    return model.encoder(audio_signal=x, length=lengths)


def facts(model: Nest, interface: Interface, tolerance: float) -> dict[str, str]:
    """Return the metadata that users of a file need, as text, because ONNX stores text only; tables are JSON."""
    signal, length = interface.names
    shape = "batch, samples" if interface.kind == "audio" else f"batch, {interface.features}, frames"
    width = model.encoder.out_proj.out_features if model.encoder.out_proj else model.encoder.pos_enc.d_model
    return {
        "model_class": "EncDecDenoiseMaskedTokenPredModel",  # the name that NeMo and `nest_ssl.models` give to it
        "nest_ssl_version": nest_ssl.__version__,
        "input": interface.kind,
        "inputs": f"{signal} ({shape}) float32, {length} (batch) int64",
        "outputs": f"{OUTPUTS[0]} (batch, {width}, encoded frames) float32, {OUTPUTS[1]} (batch) int64",
        "sample_rate": str(interface.sample_rate),
        "subsampling_factor": str(interface.frame_ratio),
        "seconds_per_encoded_frame": f"{interface.seconds_per_frame:g}",
        "shortest_input": str(interface.shortest),
        "tolerance": f"{tolerance:g}",
        "preprocessor": json.dumps(_complete(model.settings["preprocessor"], AudioToMelSpectrogramPreprocessor)),
        "encoder": json.dumps(_complete(model.settings["encoder"], ConformerEncoder)),
    }


def _complete(node: Mapping[str, Any], part: type) -> dict[str, Any]:
    """Return a part's settings, with the defaults of those that are not configured."""
    parameters = inspect.signature(part).parameters.values()
    defaults = {
        parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
    }
    return {name: value for name, value in {**defaults, **node}.items() if name != "_target_"}
