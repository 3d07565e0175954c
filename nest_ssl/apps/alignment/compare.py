"""Compare two recordings, NeMo's and ours, in sections: structure, weights, batch, forward, loss, gradients, layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from nest_ssl.apps.alignment.checklist import SettingPair, differing_settings
from nest_ssl.apps.alignment.recording import RecordedStep, Recording
from nest_ssl.apps.alignment.sections import (
    Compared,
    Section,
    Tolerance,
    add_missing,
    comparable,
    compare_loss,
    compare_tables,
    compare_tensors,
)
from nest_ssl.errors import CheckpointError

CurveName = Literal["loss", "grad_norm", "lr"]
CURVES: tuple[CurveName, ...] = ("loss", "grad_norm", "lr")
HALF_TOLERANCE = 2.0**-10  # relative: one unit in the last place of half precision


@dataclass
class StepComparison:
    """The comparison of one step."""

    step: int
    losses: tuple[float, float]  # NeMo's, ours
    batch: Section
    forward: Section
    loss: Section
    gradients: Section
    weights: Section  # after the optimizer's step; empty in a replay
    layers: Section

    @property
    def sections(self) -> list[Section]:
        """All sections, in the order in which a step computes them."""
        return [self.batch, self.layers, self.forward, self.loss, self.gradients, self.weights]

    @property
    def aligned(self) -> bool:
        return all(section.aligned for section in self.sections)

    @property
    def identical(self) -> bool:
        return all(section.all_identical for section in self.sections)


@dataclass(frozen=True)
class CurvePoint:
    """The values that both runs logged for one step, as pairs (NeMo's, ours)."""

    step: int
    loss: tuple[float, float]
    grad_norm: tuple[float, float]
    lr: tuple[float, float]

    def difference(self, name: CurveName) -> float:
        """Absolute; NaN equals NaN, and differs infinitely from a number.

        Where no frame was masked, NeMo's loss is NaN and ours 0, which is no difference.
        """
        theirs, ours = getattr(self, name)
        both_nan = math.isnan(theirs) and math.isnan(ours)
        unmasked = name == "loss" and math.isnan(theirs) and ours == 0
        if theirs == ours or both_nan or unmasked:
            return 0.0
        apart = abs(ours - theirs)
        return math.inf if math.isnan(apart) else apart

    def agrees(self, name: CurveName, tolerance: Tolerance) -> bool:
        """Whether the two sides of one curve are equal enough here."""
        apart = self.difference(name)
        return apart == 0 or apart <= tolerance.atol + tolerance.rtol * abs(getattr(self, name)[0])

    def within(self, tolerance: Tolerance) -> bool:
        """Whether the two sides agree in everything that they logged of this step."""
        return all(self.agrees(name, tolerance) for name in CURVES)


@dataclass
class Comparison:
    """The comparison of two recordings."""

    nemo: Mapping[str, Any]  # metadata
    ours: Mapping[str, Any]
    tolerance: Tolerance
    structure: Section
    initial_weights: Section
    parameters: tuple[int, int]  # numbers in all parameters: NeMo's, ours
    steps: list[StepComparison]
    curves: list[CurvePoint]

    @property
    def placed_sections(self) -> list[tuple[int | None, Section]]:
        """Every section with its step (None before the first), in the order in which a run computes them."""
        before: list[tuple[int | None, Section]] = [(None, self.structure), (None, self.initial_weights)]
        return before + [(step.step, section) for step in self.steps for section in step.sections]

    @property
    def numbers(self) -> int:
        """How many numbers were compared, including the initial weights."""
        return sum(item.numbers for _, section in self.placed_sections for item in section.items)

    @property
    def aligned(self) -> bool:
        """Whether nothing differs beyond the tolerance, also not the logged values of steps without tensors."""
        parts = [self.structure.aligned, self.initial_weights.aligned, *(step.aligned for step in self.steps)]
        return bool(self.steps) and all(parts) and self.first_parting is None

    @property
    def identical(self) -> bool:
        """Whether every number is the same to the last bit."""
        parts = [self.structure.all_identical, self.initial_weights.all_identical]
        parts += [step.identical for step in self.steps]
        return self.aligned and all(parts) and all(point.within(Tolerance(0, 0)) for point in self.curves)

    @property
    def first_parting(self) -> CurvePoint | None:
        """The first step whose loss, gradient norm or learning rate differs beyond the tolerance."""
        return next((point for point in self.curves if not point.within(self.tolerance)), None)

    @property
    def differing_settings(self) -> list[SettingPair]:
        """Settings that differ, a possible reason for other results."""
        return differing_settings(self.nemo, self.ours)

    @property
    def replayed(self) -> bool:
        """Whether our side was given NeMo's batch, weights, mask and dropout."""
        return bool(self.ours.get("replay"))


def compare(
    nemo: Recording, ours: Recording, steps: list[int] | None = None, tolerance: Tolerance | None = None
) -> Comparison:
    """Compare the given steps, or all that both sides recorded."""
    tolerance = tolerance or Tolerance()
    chosen = [step for step in nemo.steps if step in ours.steps] if steps is None else steps
    if not chosen:
        raise CheckpointError(f"{nemo.folder} and {ours.folder} have no step in common")
    half = bool(nemo.metadata.get("half") or ours.metadata.get("half"))
    return Comparison(
        nemo=nemo.metadata,
        ours=ours.metadata,
        tolerance=tolerance,
        structure=_compare_structure(nemo.structure["tensors"], ours.structure["tensors"]),
        initial_weights=_compare_initial_weights(nemo, ours, tolerance),
        parameters=(_parameter_count(nemo), _parameter_count(ours)),
        steps=[
            _compare_step(nemo.step(number), ours.step(number), tolerance, half, bool(ours.metadata.get("replay")))
            for number in chosen
        ],
        curves=list(_curves(nemo.metadata, ours.metadata)),
    )


def _compare_structure(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Section:
    """Compare names, shapes, types and kinds (trainable, frozen, buffer) of all tensors."""
    section = Section("structure")
    for name in dict.fromkeys([*theirs, *ours]):
        if name in theirs and name in ours:
            equal = theirs[name] == ours[name]
            note = "" if equal else f"NeMo {_described(theirs[name])}, ours {_described(ours[name])}"
        else:
            equal = False
            (section.only_nemo if name in theirs else section.only_ours).append(name)
            note = "only in NeMo's model" if name in theirs else "only in ours"
        section.items.append(Compared(name, equal, equal, note=note))
    return section


def _compare_initial_weights(theirs: Recording, ours: Recording, tolerance: Tolerance) -> Section:
    if ours.metadata.get("replay"):  # they were NeMo's
        return Section("initial weights")
    return compare_tables("initial weights", theirs.initial_weights, ours.initial_weights, tolerance)


def _compare_step(
    theirs: RecordedStep, ours: RecordedStep, tolerance: Tolerance, half: bool, replayed: bool
) -> StepComparison:
    """Compare one step; of a replay without what was given to our side (batch, weights, mask), which proves nothing."""
    their_loss, our_loss = theirs.loss, ours.loss
    weights = Section("weights")
    their_weights, our_weights = theirs.weights, ours.weights
    if their_weights is not None and our_weights is not None:
        weights = compare_tables("weights", their_weights, our_weights, tolerance)
    batch = Section("batch")
    their_outputs, our_outputs = theirs.outputs, ours.outputs
    if replayed:
        for outputs in (their_outputs, our_outputs):
            outputs.pop("masks", None)
    else:
        batch = _compare_batches(theirs.batch, ours.batch, tolerance)
    layer_tolerance = Tolerance(tolerance.atol, max(tolerance.rtol, HALF_TOLERANCE)) if half else tolerance
    return StepComparison(
        step=theirs.number,
        losses=(float(their_loss), float(our_loss)),
        batch=batch,
        forward=compare_tables("forward", their_outputs, our_outputs, tolerance),
        loss=Section("loss", [compare_loss(their_loss, our_loss, tolerance)]),
        gradients=compare_tables("gradients", theirs.gradients, ours.gradients, tolerance),
        weights=weights,
        layers=_compare_layers(theirs.layers, ours.layers, layer_tolerance),
    )


def _compare_batches(theirs: Mapping[str, Any], ours: Mapping[str, Any], tolerance: Tolerance) -> Section:
    """Compare the tensors of a batch; its lists of file names are written differently by the two sides."""
    their_tensors, our_tensors = (
        {name: value for name, value in side.items() if isinstance(value, Tensor)} for side in (theirs, ours)
    )
    return compare_tables("batch", their_tensors, our_tensors, tolerance)


def _compare_layers(theirs: Mapping[str, Any], ours: Mapping[str, Any], tolerance: Tolerance) -> Section:
    """Compare every call of every layer, in NeMo's order.

    A layer that only one side calls is no difference if a layer around it is compared, which contains its result.
    """
    section = Section("layers")
    calls = sorted(((call, name, i) for name, of in theirs.items() for i, call in enumerate(of)), key=_order)
    for call, name, index in calls:
        label = name if len(theirs[name]) == 1 else f"{name} (call {index + 1})"
        if name in ours and index < len(ours[name]):
            section.items.append(_compare_call(label, call, ours[name][index], tolerance))
        elif any(name.startswith(f"{around}.") for around in ours):
            section.only_nemo.append(label)
        else:
            add_missing(section, label, in_nemo=True)
    for name in ours:
        extra = len(ours[name]) - len(theirs.get(name, []))
        if extra > 0 and any(name.startswith(f"{around}.") for around in theirs):
            section.only_ours.append(name)
        elif extra > 0:
            add_missing(section, name, in_nemo=False)
    return section


def _compare_call(label: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], tolerance: Tolerance) -> Compared:
    """Return the result of the worst tensor of a call.

    The two sides may pass arguments in another order, or more of them: each of our tensors is compared with NeMo's
    next one of the same shape and type. An output must have such a partner.
    """
    compared = []
    for part in ("inputs", "outputs"):
        left = list(theirs[part].values())
        for tensor in ours[part].values():
            partner = next((t for t in left if comparable(t, tensor, tolerance)), None)
            if partner is not None:
                left = [t for t in left if t is not partner]
                compared.append((part, compare_tensors(label, partner, tensor, tolerance)))
            elif part == "outputs" and left:
                compared.append((part, compare_tensors(label, left[0], tensor, tolerance)))
    if not compared:
        return Compared(label, True, True, note="passes no tensor")
    part, worst = max(compared, key=lambda pair: (not pair[1].within, not pair[1].identical, pair[1].max_abs))
    outputs = [result for which, result in compared if which == "outputs"]
    shown = worst if not worst.identical or not outputs else outputs[0]
    if shown.identical or part == "outputs":
        return shown
    return replace(shown, note=shown.note or "its input")


def _order(entry: tuple[Mapping[str, Any], str, int]) -> int:
    return int(entry[0]["order"])


def _curves(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[CurvePoint]:
    by_step = {entry["step"]: entry for entry in ours.get("history", [])}
    for entry in theirs.get("history", []):
        if entry["step"] in by_step:
            other = by_step[entry["step"]]
            pairs = ((float(entry[name]), float(other[name])) for name in ("loss", "grad_norm", "lr"))
            yield CurvePoint(entry["step"], *pairs)


def _parameter_count(recording: Recording) -> int:
    tensors = recording.structure["tensors"].values()
    return sum(math.prod(tensor["shape"]) for tensor in tensors if tensor["kind"] != "buffer")


def _described(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['shape']} {tensor['dtype']} {tensor['kind']}"
