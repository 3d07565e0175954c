"""Compare an exported file with the model on random inputs, of other lengths than those that were traced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nest_ssl.apps.export.formats import Encode
from nest_ssl.apps.export.interface import Interface, encode_eagerly
from nest_ssl.model.nest import Nest

_LONGEST_SECONDS = 60.0
_SEED = 0


@dataclass(frozen=True)
class ComparedBatch:
    """One batch, encoded by the file and by the model."""

    lengths: tuple[int, ...]
    difference: float  # the largest, relative to the encoding's root mean square; infinite if shapes or lengths differ


@dataclass(frozen=True)
class Check:
    """The results of all batches."""

    trials: tuple[ComparedBatch, ...]
    tolerance: float

    @property
    def largest(self) -> float:
        return max(trial.difference for trial in self.trials)

    @property
    def passed(self) -> bool:
        return self.largest <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        return {
            "largest_difference": _json(self.largest),
            "tolerance": self.tolerance,
            "trials": [{"lengths": trial.lengths, "difference": _json(trial.difference)} for trial in self.trials],
        }


def check(
    encode: Encode,
    model: Nest,
    interface: Interface,
    tolerance: float,
    progress: Callable[[str], None] = lambda _: None,
) -> Check:
    """Compare a file's encoder with the model, which must be in eval mode."""
    generator = torch.Generator().manual_seed(_SEED)
    batches = lengths_to_try(interface, generator)
    trials = []
    for number, lengths in enumerate(batches, start=1):
        progress(f"checking batch {number} of {len(batches)}")
        x, length = interface.batch(lengths, generator)
        expected = encode_eagerly(model, interface, x, length)
        trials.append(ComparedBatch(tuple(lengths), difference(encode(x, length), expected)))
    return Check(tuple(trials), tolerance)


def lengths_to_try(interface: Interface, generator: torch.Generator) -> list[list[int]]:
    """Return batches: the shortest input; one and several of random lengths; one beyond the table of positions."""
    shortest, longest = interface.shortest, interface.example()[0].shape[-1]

    def drawn(count: int, low: int, high: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    beyond = interface.known_positions * interface.steps_in_frame + shortest
    return [
        [shortest],
        drawn(1, shortest, longest),
        drawn(3, shortest, longest),
        [*drawn(1, longest, 4 * longest), shortest],
        [min(beyond, interface.steps(_LONGEST_SECONDS)) + drawn(1, 0, shortest)[0]],
    ]


def difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the largest difference of two pairs of encodings (B, D, U) and lengths (B), up to those lengths."""
    (encoded, lengths), (expected, expected_lengths) = ours, theirs
    if encoded.shape != expected.shape or not torch.equal(lengths, expected_lengths):
        return float("inf")
    valid = torch.arange(expected.shape[2]) < expected_lengths.unsqueeze(1)  # (B, U)
    encoded, expected = (x.transpose(1, 2)[valid] for x in (encoded, expected))  # (B, D, U) -> (frames, D)
    largest = ((encoded - expected).abs().max() / expected.pow(2).mean().sqrt()).item()
    return largest if largest == largest else float("inf")  # NaN


def _json(difference: float) -> float | None:
    """Replace infinity, which JSON does not have."""
    return difference if math.isfinite(difference) else None
