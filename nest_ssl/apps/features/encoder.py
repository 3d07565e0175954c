"""Compute the features of any layer of a pre-trained encoder, without anything random.

Layer 0 is the output of sub-sampling, layer k that of the k-th Conformer block; the last one is the encoder's output.
NeMo counts blocks from 0: its `layer_output_k` is layer k + 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nest_ssl.checkpoint import restore_for_use
from nest_ssl.config.schema import Numerics
from nest_ssl.errors import AudioError, NestError
from nest_ssl.model import ConformerEncoder
from nest_ssl.model.fast import encode_batch
from nest_ssl.model.nest import Nest
from nest_ssl.regular_file import open_regular

_LONGEST_LIST = 2**20  # bytes


class Encoder:
    """A model in evaluation mode: without dither, dropout, masks and gradients.

    `exact` pads a batch as NeMo does and gives NeMo's numbers for that batch. `fast` computes without padding: the
    result for an utterance does not depend on the other ones in the batch, and its last bits differ from `exact`.
    """

    def __init__(self, model: Nest, numerics: Numerics = "exact") -> None:
        self.model = model.eval()
        self.numerics = numerics
        self.device = next(model.parameters()).device
        self.encoder: ConformerEncoder = model.encoder
        self.last_layer = len(self.encoder.layers)
        self.sample_rate: int = model.settings["sample_rate"]
        reasons = model.reasons_for_exact()
        if numerics == "fast" and reasons:
            raise NestError(f"--numerics: fast cannot do {', '.join(reasons)} of this model; use exact")

    @classmethod
    def load(cls, path: Path | str, numerics: Numerics = "exact", device: str | None = None) -> Encoder:
        """Load the encoder of a `.nemo`, `.safetensors` or `.ckpt` file; on the GPU if there is one."""
        return cls(restore_for_use(path, device), numerics)

    def with_random_weights(self, seed: int) -> Encoder:
        """Return the same architecture with new random weights, as at the start of training."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Nest(self.model.settings)
        return Encoder(model.to(self.device), self.numerics)

    def check_layers(self, numbers: Sequence[int]) -> None:
        """Refuse layers with another frame rate than the output, and layers of different widths together."""
        others = [number for number in numbers if number != self.last_layer]
        if others and self.encoder.reduction_position is not None:
            raise NestError("--layers: this model reduces its frame rate between layers; ask for the last one only")
        if others and len(others) < len(numbers) and self.encoder.out_proj is not None:
            raise NestError("--layers: this model's output is not as wide as its layers; ask for one or the other")

    def refuse_short(self, waveform: Tensor, where: str) -> None:
        """Raise AudioError for samples (S) that are too few for one frame."""
        if int(self.model.preprocessor.frames(torch.tensor(len(waveform)))) < 1:
            raise AudioError(f"{where}: {len(waveform)} samples are too few for one frame", "empty")

    @torch.inference_mode()
    def encode(self, waveforms: Sequence[Tensor], layers: Sequence[int]) -> list[list[Tensor]]:
        """Encode one batch of waveforms (S); return for each the outputs (U, D) of these layers, on the CPU."""
        self.refuse_short(min(waveforms, key=len), "a waveform")
        self.check_layers(layers)
        lengths = torch.tensor([len(waveform) for waveform in waveforms])
        signal = nn.utils.rnn.pad_sequence(list(waveforms), batch_first=True)
        run = self._fast if self.numerics == "fast" else self._exact
        outputs = run(signal.to(self.device), lengths.to(self.device), set(layers))
        return [[outputs[layer][row].cpu() for layer in layers] for row in range(len(waveforms))]

    def _exact(self, signal: Tensor, lengths: Tensor, layers: set[int]) -> dict[int, Sequence[Tensor]]:
        features, frames = self.model.preprocessor(input_signal=signal, length=lengths)
        stages = {0: self.encoder.pre_encode, **dict(enumerate(self.encoder.layers, start=1))}
        with _outputs({layer: stages[layer] for layer in layers - {self.last_layer}}) as outputs:
            last, valid = self.encoder(audio_signal=features, length=frames)
        outputs[self.last_layer] = last.transpose(1, 2)  # (B, D, U) -> (B, U, D)
        return {
            layer: [row[:count] for row, count in zip(outputs[layer], valid.tolist(), strict=True)] for layer in layers
        }

    def _fast(self, signal: Tensor, lengths: Tensor, layers: set[int]) -> dict[int, Sequence[Tensor]]:
        inner = layers - {0, self.last_layer}
        stages = {layer: self.encoder.layers[layer - 1].get_submodule("norm_out") for layer in inner}  # a block's end
        with _outputs(stages) as outputs:
            outputs[0], outputs[self.last_layer], counts = encode_batch(self.model.parts, signal, lengths)
        return {layer: outputs[layer].split(counts) for layer in layers}


@contextmanager
def _outputs(stages: Mapping[int, nn.Module]) -> Iterator[dict[int, Tensor]]:
    """Collect the outputs of these modules within the block, under the same numbers."""
    outputs: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            outputs[number] = output[0] if isinstance(output, tuple) else output  # sub-sampling also returns lengths

        return hook

    with ExitStack() as stack:
        for number, stage in stages.items():
            stack.callback(stage.register_forward_hook(keep(number)).remove)
        yield outputs


@dataclass(frozen=True)
class Layers:
    """The numbers of layers and, if a weighted sum of them is wanted, its weights."""

    numbers: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    @classmethod
    def parse(cls, text: str, last: int) -> Layers:
        """Read `last`, `all`, or numbers such as `12` and `0,6,12`; negative ones count from the end."""
        if text == "last":
            return cls((last,))
        if text == "all":
            return cls(tuple(range(last + 1)))
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            raise NestError(f"--layers: is {text!r}; expected last, all, or numbers such as 0,6,12") from None
        wrong = [number for number in numbers if not -last - 1 <= number <= last]
        if wrong:
            raise NestError(
                f"--layers: there is no layer {wrong[0]}; this model has 0 (sub-sampling) to {last} (output)"
            )
        return cls(tuple(number % (last + 1) for number in numbers))

    @classmethod
    def mix(cls, text: str, last: int) -> Layers:
        """Read the weights of the sum of all layers, from numbers or from a file; they are not normalised."""
        try:
            weights = _numbers(text) or _numbers(_text(text))
        except (OSError, ValueError):
            weights = None
        if weights is None:
            raise NestError(f"--mix: is {text!r}; expected numbers joined by commas, or a file of them")
        if len(weights) != last + 1 or not all(map(math.isfinite, weights)):
            raise NestError(
                f"--mix: has {len(weights)} weights; expected {last + 1} finite numbers, for layers 0 to {last}"
            )
        return cls(tuple(range(last + 1)), weights)

    def combined(self, outputs: Sequence[Tensor]) -> Tensor:
        """Combine outputs (U, D) of these layers into (U, D), or (L, U, D) for several layers without weights."""
        if self.weights is not None:
            return torch.tensordot(torch.tensor(self.weights), torch.stack(list(outputs)), dims=1)
        return outputs[0] if len(outputs) == 1 else torch.stack(list(outputs))


def _text(path: str) -> str:
    with open_regular(path) as file:
        return file.read(_LONGEST_LIST).decode()


def _numbers(text: str) -> tuple[float, ...] | None:
    try:
        return tuple(float(part) for part in text.strip(" \n[]").replace(",", " ").split())
    except ValueError:
        return None
