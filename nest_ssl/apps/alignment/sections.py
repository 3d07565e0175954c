"""Compare the named tensors of two sides: one result for each, in sections of one kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from nest_ssl.apps.alignment.recorder.files import dtype_name

State = Literal["identical", "within", "different"]
Structure = Mapping[str, Mapping[str, Any]]  # shape, dtype and kind (trainable, frozen, buffer) of a model's tensors
_TINY = 1e-30
_INTEGERS = (torch.int16, torch.int32, torch.int64)
NO_MASKED_FRAME = "no frame was masked: NaN in NeMo, 0 in ours (docs/numerics.md)"


@dataclass(frozen=True)
class Tolerance:
    """How much two tensors may differ: `|ours - NeMo's| <= atol + rtol * |NeMo's|` for every number."""

    atol: float = 1e-5
    rtol: float = 1e-5

    def __str__(self) -> str:
        return f"atol {self.atol:g}, rtol {self.rtol:g}"


@dataclass(frozen=True)
class Compared:
    """One value of both sides. A note says why it could not be compared number by number."""

    name: str
    identical: bool  # to the last bit
    within: bool  # the tolerance
    max_abs: float = 0.0
    max_rel: float = 0.0  # of the largest magnitude in NeMo's tensor
    mean_abs: float = 0.0
    std: float = 0.0  # of the differences
    numbers: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    note: str = ""

    @property
    def state(self) -> State:
        return state_of(self.identical, self.within)

    @property
    def measured(self) -> bool:
        """Whether the difference is a number; else the note says what differs, such as a shape."""
        return not self.note or 0 < self.max_abs < math.inf


@dataclass
class Section:
    """Values of one kind, in the order of data."""

    name: str
    items: list[Compared] = field(default_factory=list)
    # layers that only one side calls, which is no mismatch: a layer around each is compared, and contains its result
    inside_others: list[str] = field(default_factory=list)

    @property
    def mismatches(self) -> list[Compared]:
        return [item for item in self.items if not item.within]

    @property
    def matched(self) -> int:
        return sum(item.within for item in self.items)

    @property
    def identical(self) -> int:
        return sum(item.identical for item in self.items)

    @property
    def worst(self) -> Compared | None:
        return worst_of(self.items)

    @property
    def aligned(self) -> bool:
        return not self.mismatches

    @property
    def state(self) -> State:
        return state_of(self.identical == len(self.items), self.aligned)


def state_of(identical: bool, within: bool) -> State:
    if identical:
        return "identical"
    return "within" if within else "different"


def worst_of(items: Iterable[Compared]) -> Compared | None:
    """Return the largest difference, a measured one if there is any; None where all are identical."""
    different = (item for item in items if not item.identical)
    return max(different, key=lambda item: (item.measured, item.max_abs), default=None)


def parameter_count(tensors: Structure) -> int:
    """Return how many numbers the parameters have, without buffers."""
    return sum(math.prod(tensor["shape"]) for tensor in tensors.values() if tensor["kind"] != "buffer")


def compare_structure(theirs: Structure, ours: Structure) -> Section:
    """Compare shape, type and kind of all tensors of two models."""
    section = Section("structure")
    for name in dict.fromkeys([*theirs, *ours]):
        note = ""
        if name not in ours:
            note = f"only in NeMo's model, {_kind(theirs[name])}"
        elif name not in theirs:
            note = f"only in our model, {_kind(ours[name])}"
        elif theirs[name] != ours[name]:
            note = f"NeMo {_kind(theirs[name])}, ours {_kind(ours[name])}"
        section.items.append(Compared(name, identical=not note, within=not note, note=note))
    return section


def compare_tables(
    name: str, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], tolerance: Tolerance
) -> Section:
    """Compare all tensors of both tables, name by name."""
    section = Section(name)
    for key in dict.fromkeys([*theirs, *ours]):
        if key in theirs and key in ours:
            section.items.append(compare_tensors(key, theirs[key], ours[key], tolerance))
        else:
            section.items.append(missing(key, in_nemo=key in theirs))
    return section


def missing(name: str, in_nemo: bool) -> Compared:
    """Return the result for a value that one side does not have."""
    return not_comparable(name, "only in NeMo's recording" if in_nemo else "only in ours")


def not_comparable(name: str, note: str) -> Compared:
    """Return the result for a value that cannot be compared number by number; the note says why."""
    return Compared(name, identical=False, within=False, max_abs=math.inf, max_rel=math.inf, note=note)


def compare_tensors(name: str, theirs: Tensor, ours: Tensor, tolerance: Tolerance) -> Compared:
    """Compare every number of two tensors of the same shape; NaN equals NaN, and infinity itself."""
    shape, dtype = tuple(theirs.shape), dtype_name(theirs)
    if not comparable(theirs, ours):
        note = f"NeMo {list(shape)} {dtype}, ours {list(ours.shape)} {dtype_name(ours)}"
        return replace(not_comparable(name, note), numbers=theirs.numel(), shape=shape, dtype=dtype)
    equal = Compared(name, identical=True, within=True, numbers=theirs.numel(), shape=shape, dtype=dtype)
    if torch.equal(theirs, ours):
        return equal
    a, b = theirs.double(), ours.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if same.all():  # NaN at the same places
        return equal
    distance = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    magnitude = torch.where(a.isfinite(), a.abs(), 0.0)
    largest = float(distance.max())
    return replace(
        equal,
        identical=False,
        within=bool((distance <= tolerance.atol + tolerance.rtol * magnitude).all()),
        max_abs=largest,
        max_rel=largest / max(float(magnitude.max()), _TINY),
        mean_abs=float(distance.mean()),
        std=float(distance.std(correction=0)),
    )


def compare_loss(theirs: Tensor, ours: Tensor, tolerance: Tolerance) -> Compared:
    """Compare two losses. Where no frame is masked, NeMo's is NaN (a known defect) and ours 0: that counts as equal."""
    if theirs.isnan() and ours == 0:
        return Compared("loss", True, True, numbers=1, note=NO_MASKED_FRAME)
    return compare_tensors("loss", theirs, ours, tolerance)


def comparable(theirs: Tensor, ours: Tensor) -> bool:
    """Whether both have the same shape and type; integers, which are lengths and tokens, may have any width."""
    integers = theirs.dtype in _INTEGERS and ours.dtype in _INTEGERS
    return theirs.shape == ours.shape and (theirs.dtype == ours.dtype or integers)


def _kind(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['shape']} {tensor['dtype']} {tensor['kind']}"
