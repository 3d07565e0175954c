"""Compare the named tensors of two sides: one result for each, in sections of one kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from nest_ssl.apps.alignment.recorder import TensorDigest, dtype_name

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
    same_integers: bool = False  # whether int32 and int64 are different types

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
    """Values of one kind, in the order of data; names that only one side has are listed apart."""

    name: str
    items: list[Compared] = field(default_factory=list)
    only_nemo: list[str] = field(default_factory=list)
    only_ours: list[str] = field(default_factory=list)

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

    @property
    def inside_others(self) -> list[str]:
        """Layers that only one side calls, which is no mismatch: a layer around them is compared."""
        compared = {item.name for item in self.items}
        return [name for name in (*self.only_nemo, *self.only_ours) if name not in compared]


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
            section.only_nemo.append(name)
            note = f"only in NeMo's model, {_kind(theirs[name])}"
        elif name not in theirs:
            section.only_ours.append(name)
            note = f"only in our model, {_kind(ours[name])}"
        elif theirs[name] != ours[name]:
            note = f"NeMo {_kind(theirs[name])}, ours {_kind(ours[name])}"
        section.items.append(Compared(name, identical=not note, within=not note, note=note))
    return section


def compare_tables(
    name: str,
    theirs: Mapping[str, Tensor | TensorDigest],
    ours: Mapping[str, Tensor | TensorDigest],
    tolerance: Tolerance,
) -> Section:
    """Compare all values of both tables, name by name."""
    section = Section(name)
    for key in dict.fromkeys([*theirs, *ours]):
        if key in theirs and key in ours:
            section.items.append(_compare_values(key, theirs[key], ours[key], tolerance))
        else:
            add_missing(section, key, in_nemo=key in theirs)
    return section


def add_missing(section: Section, name: str, in_nemo: bool) -> None:
    """Add a value that one side does not have."""
    (section.only_nemo if in_nemo else section.only_ours).append(name)
    note = "only in NeMo's recording" if in_nemo else "only in ours"
    section.items.append(_incomparable(name, note))


def compare_tensors(name: str, theirs: Tensor, ours: Tensor, tolerance: Tolerance) -> Compared:
    """Compare every number of two tensors of the same shape; NaN equals NaN, and infinity itself."""
    if not comparable(theirs, ours, tolerance):
        return _different_kinds(name, theirs, ours)
    shape, dtype = _shape_and_type(theirs)
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


def comparable(theirs: Tensor, ours: Tensor, tolerance: Tolerance) -> bool:
    """Whether both have the same shape and type; integers, which are lengths and tokens, may have any width."""
    of_any_width = not tolerance.same_integers and theirs.dtype in _INTEGERS and ours.dtype in _INTEGERS
    return theirs.shape == ours.shape and (theirs.dtype == ours.dtype or of_any_width)


def _compare_values(
    name: str, theirs: Tensor | TensorDigest, ours: Tensor | TensorDigest, tolerance: Tolerance
) -> Compared:
    """Compare two tensors, or the digests of two large ones: checksums of all numbers, differences of samples."""
    if isinstance(theirs, Tensor) and isinstance(ours, Tensor):
        return compare_tensors(name, theirs, ours, tolerance)
    shape, dtype = _shape_and_type(theirs)
    if isinstance(theirs, Tensor) or isinstance(ours, Tensor) or (shape, dtype) != _shape_and_type(ours):
        return _different_kinds(name, theirs, ours)
    equal = theirs["sha256"] == ours["sha256"]
    sample = compare_tensors(name, theirs["sample"], ours["sample"], tolerance)
    note = "" if equal else f"in a sample of {sample.numbers}"
    return replace(sample, identical=equal, within=equal, numbers=math.prod(shape), shape=shape, note=note)


def _different_kinds(name: str, theirs: Tensor | TensorDigest, ours: Tensor | TensorDigest) -> Compared:
    (shape, dtype), (our_shape, our_dtype) = map(_shape_and_type, (theirs, ours))
    note = f"NeMo {list(shape)} {dtype}, ours {list(our_shape)} {our_dtype}"
    return replace(_incomparable(name, note), numbers=math.prod(shape), shape=shape, dtype=dtype)


def _incomparable(name: str, note: str) -> Compared:
    return Compared(name, identical=False, within=False, max_abs=math.inf, max_rel=math.inf, note=note)


def _shape_and_type(value: Tensor | TensorDigest) -> tuple[tuple[int, ...], str]:
    if isinstance(value, Tensor):
        return tuple(value.shape), dtype_name(value)
    return tuple(value["shape"]), value["dtype"].removeprefix("torch.")


def _kind(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['shape']} {tensor['dtype']} {tensor['kind']}"
