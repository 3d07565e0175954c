"""Compare two recordings of record.py stage by stage, in the order in which data flows.

    python compare.py THEIRS.pt OURS.pt

Equal means equal to the last bit. The first difference named is the first stage to look at: what follows it may
only be its consequence.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BEFORE_LOSS = ("tokens", "masks", "encoded_len", "log_probs")
AFTER_LOSS = ("grad_norm", "lr")


@dataclass
class Comparison:
    """What two recordings have in common: how many values were compared, and where they differ."""

    compared: int = 0
    losses: int = 0
    empty_batches: int = 0  # no masked frame: NaN in NeMo (a known defect), 0 in ours
    differences: list[str] = field(default_factory=list)

    def summary(self) -> str:
        if self.differences:
            return f"FIRST DIFFERENCE: {self.differences[0]} ({len(self.differences)} in {self.compared} values)"
        empty = f", {self.empty_batches} batches without masked frames" if self.empty_batches else ""
        return f"bit-identical: {self.compared} values, {self.losses} losses{empty}"


def compare(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Comparison:
    """Compare every stage that either recording holds."""
    result = Comparison()
    for side, recording in (("theirs", theirs), ("ours", ours)):
        if "error" in recording:
            result.differences.append(f"{side} failed: {recording['error']}")
    if result.differences:
        return result
    for count in ("parameters", "trainable"):
        _check(result, f"number of {count}", theirs[count], ours[count])
    _check_all(result, "initial weights", theirs["initial"], ours["initial"])
    _check(result, "number of steps", len(theirs["steps"]), len(ours["steps"]))
    for index, (their_step, our_step) in enumerate(zip(theirs["steps"], ours["steps"], strict=False)):
        _check_step(result, f"step {index}", their_step, our_step)
    _check(result, "number of validations", len(theirs["validations"]), len(ours["validations"]))
    for index, (their_metrics, our_metrics) in enumerate(zip(theirs["validations"], ours["validations"], strict=False)):
        _check_all(result, f"validation {index}", their_metrics, our_metrics)
    _check_all(result, "final weights", theirs["final"], ours["final"])
    return result


def _check_step(result: Comparison, stage: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    _check_all(result, f"{stage} batch", theirs["batch"], ours["batch"])
    for name in BEFORE_LOSS:
        _check(result, f"{stage} {name}", theirs.get(name), ours.get(name))
    if math.isnan(theirs["loss"]) and ours["loss"] == 0.0:
        result.empty_batches += 1
    else:
        result.losses += 1
        _check(result, f"{stage} loss", theirs["loss"], ours["loss"])
    _check_all(result, f"{stage} gradients", theirs.get("gradients", {}), ours.get("gradients", {}))
    for name in AFTER_LOSS:
        _check(result, f"{stage} {name}", theirs.get(name), ours.get(name))


def _check_all(result: Comparison, stage: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Compare two sets of named values: the same names, and each value the same."""
    missing, extra = [n for n in theirs if n not in ours], [n for n in ours if n not in theirs]
    if missing or extra:
        result.differences.append(f"{stage}: names differ, missing {missing[:3]}, extra {extra[:3]}")
    for name in theirs:
        if name in ours:
            _check(result, f"{stage} {name}", theirs[name], ours[name])


def _check(result: Comparison, stage: str, theirs: Any, ours: Any) -> None:
    result.compared += 1
    difference = _difference(theirs, ours)
    if difference:
        result.differences.append(f"{stage}: {difference}")


def _difference(theirs: Any, ours: Any) -> str | None:
    """How two recorded values differ, in words; None when they are equal."""
    kinds = [type(value) for value in (theirs, ours)]
    if kinds[0] is not kinds[1]:
        return f"theirs {_describe(theirs)}, ours {_describe(ours)}"
    if isinstance(theirs, Tensor):
        return _tensor_difference(theirs, ours, torch.equal(theirs, ours))
    if isinstance(theirs, dict):
        if theirs["shape"] != ours["shape"]:
            return f"theirs {_describe(theirs)}, ours {_describe(ours)}"
        return _tensor_difference(theirs["sample"], ours["sample"], theirs["sha256"] == ours["sha256"])
    both_nan = isinstance(theirs, float) and math.isnan(theirs) and math.isnan(ours)
    return None if theirs == ours or both_nan else f"theirs {theirs!r}, ours {ours!r}"


def _tensor_difference(theirs: Tensor, ours: Tensor, equal: bool) -> str | None:
    if theirs.dtype != ours.dtype or theirs.shape != ours.shape:
        return f"theirs {_describe(theirs)}, ours {_describe(ours)}"
    if equal:
        return None
    distance = (theirs.double() - ours.double()).abs()
    worst, scale = float(distance.max()), float(theirs.double().abs().max())
    return (
        f"{int((distance > 0).sum())} of {distance.numel()} differ, worst {worst:.3g} where the largest is {scale:.3g}"
    )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, dict):
        return f"{value['dtype']} {value['shape']}"
    return repr(value)


def load(path: Path) -> dict[str, Any]:
    """One recording."""
    recording: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    return recording


def main() -> None:
    result = compare(load(Path(sys.argv[1])), load(Path(sys.argv[2])))
    print("\n".join([*result.differences, result.summary()]))
    sys.exit(bool(result.differences))


if __name__ == "__main__":
    main()
