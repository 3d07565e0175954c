"""Choose layers, and combine their outputs.

Layer 0 is the output of sub-sampling, layer k that of the k-th Conformer block; the last one is the encoder's output.
NeMo counts blocks from 0: its `layer_output_k` is layer k + 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nest_ssl.errors import NestError
from nest_ssl.regular_file import open_regular

_LONGEST_LIST = 2**20  # bytes


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
