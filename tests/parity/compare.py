"""Compare two recordings of record.py stage by stage, in the order in which data flows.

    python -m tests.parity.compare THEIRS.pt OURS.pt

Equal means equal to the last bit. Look at the first difference first: it may have caused the later ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nest_ssl.apps.alignment.compare_command import described
from nest_ssl.apps.alignment.sections import (
    NO_MASKED_FRAME,
    Compared,
    Section,
    Tolerance,
    compare_loss,
    compare_tensors,
    missing,
    not_comparable,
)
from tests.parity.digests import TensorDigest

EXACT = Tolerance(0.0, 0.0)
OUTPUTS = ("tokens", "masks", "encoded_len", "log_probs")
OF_OPTIMISER = ("grad_norm", "lr")


@dataclass
class VariantComparison:
    """All stages of one variant in the order of the data flow, or the reason why one side has none."""

    sections: list[Section] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """The number of compared tensors and numbers."""
        return sum(len(section.items) for section in self.sections) - self.empty_batches

    @property
    def losses(self) -> int:
        return sum(item.name == "loss" for section in self.sections for item in section.items) - self.empty_batches

    @property
    def empty_batches(self) -> int:
        """Batches without masked frames: their loss is NaN in NeMo (a known defect), 0 in ours."""
        return sum(item.note == NO_MASKED_FRAME for section in self.sections for item in section.items)

    @property
    def differences(self) -> list[str]:
        """The differences, the earliest stage first."""
        different = [
            f"{section.name} {described(item)}"
            for section in self.sections
            for item in section.items
            if not item.identical
        ]
        return [*self.failures, *different]

    def summary(self) -> str:
        if self.differences:
            return f"FIRST DIFFERENCE: {self.differences[0]} ({len(self.differences)} in {self.compared} values)"
        empty = f", {self.empty_batches} batches without masked frames" if self.empty_batches else ""
        return f"bit-identical: {self.compared} values, {self.losses} losses{empty}"


def compare(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> VariantComparison:
    """Compare every stage in either recording."""
    sides = {"theirs": theirs, "ours": ours}
    failures = [f"{side} failed: {recording['error']}" for side, recording in sides.items() if "error" in recording]
    return VariantComparison(failures=failures) if failures else VariantComparison(list(_stages(theirs, ours)))


def _stages(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[Section]:
    for count in ("parameters", "trainable"):
        yield _compare("number of", {count: theirs[count]}, {count: ours[count]})
    yield _compare("initial weights", theirs["initial"], ours["initial"])
    yield _compare("number of", {"steps": len(theirs["steps"])}, {"steps": len(ours["steps"])})
    for index, (their_step, our_step) in enumerate(zip(theirs["steps"], ours["steps"], strict=False)):
        yield from _step_stages(f"step {index}", their_step, our_step)
    yield _compare("number of", {"validations": len(theirs["validations"])}, {"validations": len(ours["validations"])})
    for index, (their_metrics, our_metrics) in enumerate(zip(theirs["validations"], ours["validations"], strict=False)):
        yield _compare(f"validation {index}", their_metrics, our_metrics)
    yield _compare("final weights", theirs["final"], ours["final"])


def _step_stages(stage: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[Section]:
    yield _compare(f"{stage} batch", theirs["batch"], ours["batch"])
    yield _compare(stage, _chosen(theirs, OUTPUTS), _chosen(ours, OUTPUTS))
    yield Section(stage, [compare_loss(_tensor(theirs["loss"]), _tensor(ours["loss"]), EXACT)])
    yield _compare(f"{stage} gradients", theirs.get("gradients", {}), ours.get("gradients", {}))
    yield _compare(stage, _chosen(theirs, OF_OPTIMISER), _chosen(ours, OF_OPTIMISER))


def _chosen(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _compare(stage: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Section:
    """Compare two tables of tensors, digests and numbers."""
    section = Section(stage)
    for name in dict.fromkeys([*theirs, *ours]):
        if name in theirs and name in ours:
            section.items.append(_compare_values(name, _tensor(theirs[name]), _tensor(ours[name])))
        else:
            section.items.append(missing(name, in_nemo=name in theirs))
    return section


def _compare_values(name: str, theirs: Tensor | TensorDigest, ours: Tensor | TensorDigest) -> Compared:
    """Compare two tensors, or the digests of two large ones: checksums of all numbers, differences of samples."""
    (shape, dtype), (our_shape, our_dtype) = map(_shape_and_type, (theirs, ours))
    if (shape, dtype) != (our_shape, our_dtype):  # also of integers: an int32 is no int64 here
        return not_comparable(name, f"NeMo {shape} {dtype}, ours {our_shape} {our_dtype}")
    if isinstance(theirs, Tensor) and isinstance(ours, Tensor):
        return compare_tensors(name, theirs, ours, EXACT)
    assert not isinstance(theirs, Tensor)
    assert not isinstance(ours, Tensor)
    equal = theirs["sha256"] == ours["sha256"]
    sample = compare_tensors(name, theirs["sample"], ours["sample"], EXACT)
    return replace(sample, identical=equal, within=equal, note="" if equal else f"in a sample of {sample.numbers}")


def _shape_and_type(value: Tensor | TensorDigest) -> tuple[list[int], str]:
    shape, dtype = (value.shape, value.dtype) if isinstance(value, Tensor) else (value["shape"], value["dtype"])
    return list(shape), str(dtype).removeprefix("torch.")


def _tensor(value: Any) -> Any:
    """Return a number as an equal tensor, and anything else unchanged."""
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    return value


def names_of_nan(value: Any, name: str = "") -> list[str]:
    """Return the names of the tensors and numbers of a recording that contain NaN, because NaN equals NaN here."""
    if isinstance(value, Mapping) and "sha256" not in value:
        return [found for key, item in value.items() for found in names_of_nan(item, f"{name} {key}".strip())]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in names_of_nan(item, f"{name} {index}")]
    if isinstance(value, Mapping):
        value = value["sample"]
    return [name] if isinstance(value, Tensor | float) and torch.as_tensor(value).isnan().any() else []


def load(path: Path) -> dict[str, Any]:
    """Read one recording."""
    recording: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    return recording


def main() -> None:
    result = compare(load(Path(sys.argv[1])), load(Path(sys.argv[2])))
    print("\n".join([*result.differences, result.summary()]))
    sys.exit(bool(result.differences))


if __name__ == "__main__":
    main()
