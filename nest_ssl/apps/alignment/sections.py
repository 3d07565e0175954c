"""Compare the named tensors of two sides: one result for each, in sections of one kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from nest_ssl.apps.alignment.recorder import TensorDigest, dtype_name

Place = TypeVar("Place")
_TINY = 1e-30
_INTEGERS = (torch.int16, torch.int32, torch.int64)
NO_MASKED_FRAME = "no frame was masked: NaN in NeMo, 0 in ours (docs/numerics.md)"


@dataclass(frozen=True)
class Tolerance:
    """How much two tensors may differ: `|ours - NeMo's| <= atol + rtol * |NeMo's|` for every number."""

    atol: float = 1e-5
    rtol: float = 1e-5
    same_integers: bool = False  # whether int32 and int64 are different types


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
        """The largest absolute difference; None where there is none."""
        return worst_of([(None, item) for item in self.items])[1]

    @property
    def first_difference(self) -> Compared | None:
        return next((item for item in self.items if not item.identical), None)

    @property
    def aligned(self) -> bool:
        return not self.mismatches

    @property
    def all_identical(self) -> bool:
        return self.first_difference is None


def worst_of(items: Sequence[tuple[Place, Compared]]) -> tuple[Place | None, Compared | None]:
    """The largest difference with its place, of those that are numbers if there are any; the first of equal ones."""
    different = [(place, item) for place, item in items if not item.identical]
    return max(different, key=lambda pair: (pair[1].measured, pair[1].max_abs), default=(None, None))


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
            section.items.append(compare_values(key, theirs[key], ours[key], tolerance))
        else:
            add_missing(section, key, in_nemo=key in theirs)
    return section


def add_missing(section: Section, name: str, in_nemo: bool) -> None:
    """Add a value that one side does not have."""
    (section.only_nemo if in_nemo else section.only_ours).append(name)
    note = "only in NeMo's recording" if in_nemo else "only in ours"
    section.items.append(Compared(name, False, False, math.inf, math.inf, note=note))


def compare_values(
    name: str, theirs: Tensor | TensorDigest, ours: Tensor | TensorDigest, tolerance: Tolerance
) -> Compared:
    """Compare two tensors, or the digests that were kept of two large ones."""
    if isinstance(theirs, Tensor) and isinstance(ours, Tensor):
        return compare_tensors(name, theirs, ours, tolerance)
    if isinstance(theirs, Tensor) or isinstance(ours, Tensor):  # a digest is kept of large tensors only
        return _different_kinds(name, theirs, ours)
    return _compare_digests(name, theirs, ours, tolerance)


def compare_tensors(name: str, theirs: Tensor, ours: Tensor, tolerance: Tolerance) -> Compared:
    """Compare every number of two tensors of the same shape; NaN equals NaN, and infinity itself."""
    if not comparable(theirs, ours, tolerance):
        return _different_kinds(name, theirs, ours)
    result = partial(Compared, name, numbers=theirs.numel(), shape=tuple(theirs.shape), dtype=dtype_name(theirs))
    if torch.equal(theirs, ours):
        return result(identical=True, within=True)
    a, b = theirs.double(), ours.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if same.all():  # NaN at the same places
        return result(identical=True, within=True)
    distance = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    magnitude = torch.where(a.isfinite(), a.abs(), 0.0)
    largest = float(distance.max())
    return result(
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


def _compare_digests(name: str, theirs: TensorDigest, ours: TensorDigest, tolerance: Tolerance) -> Compared:
    """Compare all numbers by their checksum; how much they differ is measured on the samples."""
    if (theirs["shape"], theirs["dtype"]) != (ours["shape"], ours["dtype"]):
        return _different_kinds(name, theirs, ours)
    equal = theirs["sha256"] == ours["sha256"]
    sample = compare_tensors(name, theirs["sample"], ours["sample"], tolerance)
    note = "" if equal else f"in a sample of {sample.numbers}"
    numbers, shape = math.prod(theirs["shape"]), tuple(theirs["shape"])
    return replace(sample, identical=equal, within=equal, numbers=numbers, shape=shape, note=note)


def comparable(theirs: Tensor, ours: Tensor, tolerance: Tolerance) -> bool:
    """Whether both have the same shape and type; integers, which are lengths and tokens, may have any width."""
    of_any_width = not tolerance.same_integers and theirs.dtype in _INTEGERS and ours.dtype in _INTEGERS
    return theirs.shape == ours.shape and (theirs.dtype == ours.dtype or of_any_width)


def _different_kinds(name: str, theirs: Tensor | TensorDigest, ours: Tensor | TensorDigest) -> Compared:
    (shape, dtype), (our_shape, our_dtype) = map(_shape_and_type, (theirs, ours))
    note = f"NeMo {list(shape)} {dtype}, ours {list(our_shape)} {our_dtype}"
    result = partial(Compared, name, numbers=math.prod(shape), shape=shape, dtype=dtype)
    return result(identical=False, within=False, max_abs=math.inf, max_rel=math.inf, note=note)


def _shape_and_type(value: Tensor | TensorDigest) -> tuple[tuple[int, ...], str]:
    if isinstance(value, Tensor):
        return tuple(value.shape), dtype_name(value)
    return tuple(value["shape"]), value["dtype"].removeprefix("torch.")
