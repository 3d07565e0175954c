"""Compare two recordings, NeMo's and ours, in sections: structure, weights, batch, forward, loss, gradients, layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nest_ssl.apps.alignment.recording import CURVES, RecordedStep, Recording
from nest_ssl.apps.alignment.sections import (
    Compared,
    Section,
    State,
    Tolerance,
    comparable,
    compare_loss,
    compare_structure,
    compare_tables,
    compare_tensors,
    missing,
    parameter_count,
    state_of,
)
from nest_ssl.environments import NEWEST_NEMO
from nest_ssl.errors import CheckpointError

MANIFESTS = ("manifest_filepath", "noise_manifest")
_RUN_SETTINGS = ("seed", "precision", "device", "accumulate_grad_batches")
_MACHINE_SETTINGS = ("torch", "threads")
_WITHOUT_EFFECT = ("pin_memory", "target", "nemo_version")


@dataclass(frozen=True)
class SettingPair:
    """A setting that differs between the two runs; None if a run does not have it."""

    key: str
    nemo: Any
    ours: Any

    def __str__(self) -> str:
        theirs, mine = ("not set" if value is None else value for value in (self.nemo, self.ours))
        return f"{self.key}: NeMo {theirs}, ours {mine}"


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
    def state(self) -> State:
        items = [item for section in self.sections for item in section.items]
        return state_of(all(item.identical for item in items), all(item.within for item in items))


@dataclass(frozen=True)
class CurvePoint:
    """The values that both runs logged for one step, as pairs (NeMo's, ours)."""

    step: int
    loss: tuple[float, float]
    grad_norm: tuple[float, float]
    lr: tuple[float, float]

    def compared(self, name: str, tolerance: Tolerance) -> Compared:
        theirs, ours = (torch.tensor(value, dtype=torch.float64) for value in getattr(self, name))
        if name == "loss":
            return compare_loss(theirs, ours, tolerance)
        return compare_tensors(name, theirs, ours, tolerance)


class Place(NamedTuple):
    """Where a value was compared."""

    step: int | None  # None: before the first step
    section: Section
    item: Compared


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
    def places(self) -> list[Place]:
        """Every compared value, in the order in which a run computes them."""
        sections: list[tuple[int | None, Section]] = [(None, self.structure), (None, self.initial_weights)]
        sections += [(step.step, section) for step in self.steps for section in step.sections]
        return [Place(step, section, item) for step, section in sections for item in section.items]

    @property
    def numbers(self) -> int:
        """How many numbers were compared, including the initial weights."""
        return sum(place.item.numbers for place in self.places)

    @property
    def aligned(self) -> bool:
        """Whether nothing differs beyond the tolerance, also not the logged values of steps without tensors."""
        return all(place.item.within for place in self.places) and self.first_parting is None

    @property
    def identical(self) -> bool:
        """Whether every number is the same to the last bit."""
        curves = all(self.curve(name).state == "identical" for name in CURVES)
        return curves and all(place.item.identical for place in self.places)

    @property
    def state(self) -> State:
        return state_of(self.identical, self.aligned)

    def curve(self, name: str) -> Section:
        """Compare one logged value at all steps."""
        return Section(name, [point.compared(name, self.tolerance) for point in self.curves])

    @property
    def first_parting(self) -> CurvePoint | None:
        """The first step whose loss, gradient norm or learning rate differs beyond the tolerance."""
        apart = (p for p in self.curves if not all(p.compared(name, self.tolerance).within for name in CURVES))
        return next(apart, None)

    @property
    def differing_settings(self) -> list[SettingPair]:
        """Settings that differ, a possible reason for other results."""
        theirs, ours = dict(_settings(self.nemo)), dict(_settings(self.ours))
        pairs = (SettingPair(key, theirs.get(key), ours.get(key)) for key in dict.fromkeys([*theirs, *ours]))
        return [pair for pair in pairs if pair.nemo != pair.ours]

    @property
    def replayed(self) -> bool:
        """Whether our side was given NeMo's batch, weights, mask and dropout."""
        return bool(self.ours.get("replay"))

    @property
    def other_stream(self) -> str | None:
        """NeMo's version if it draws its random numbers in another order than the newest, which is no error."""
        version = self.nemo.get("versions", {}).get("nemo", NEWEST_NEMO)
        return None if version == NEWEST_NEMO or self.replayed else str(version)


def compare(
    nemo: Recording, ours: Recording, steps: list[int] | None = None, tolerance: Tolerance | None = None
) -> Comparison:
    """Compare the given steps, or all that both sides recorded.

    Of a replay, skip what was given to our side (batch, weights, mask), which proves nothing.
    """
    tolerance = tolerance or Tolerance()
    chosen = [step for step in nemo.steps if step in ours.steps] if steps is None else steps
    if not chosen:
        raise CheckpointError(f"{nemo.folder} and {ours.folder} have no step in common")
    replayed = bool(ours.metadata.get("replay"))
    initial_weights = Section("initial weights")
    if not replayed:
        initial_weights = compare_tables(initial_weights.name, nemo.initial_weights, ours.initial_weights, tolerance)
    return Comparison(
        nemo=nemo.metadata,
        ours=ours.metadata,
        tolerance=tolerance,
        structure=compare_structure(nemo.structure["tensors"], ours.structure["tensors"]),
        initial_weights=initial_weights,
        parameters=(parameter_count(nemo.structure["tensors"]), parameter_count(ours.structure["tensors"])),
        steps=[_compare_step(nemo.step(number), ours.step(number), tolerance, replayed) for number in chosen],
        curves=list(_curves(nemo.metadata, ours.metadata)),
    )


def _compare_step(theirs: RecordedStep, ours: RecordedStep, tolerance: Tolerance, replayed: bool) -> StepComparison:
    """Compare what both sides computed in one step; of a replay, neither batch nor mask, which our side was given."""
    their_loss, our_loss = theirs.loss, ours.loss
    their_outputs, our_outputs = theirs.outputs, ours.outputs
    their_weights, our_weights = theirs.weights, ours.weights
    batch, weights = Section("batch"), Section("weights")
    if replayed:
        their_outputs.pop("masks", None)
        our_outputs.pop("masks", None)
    else:
        batch = compare_tables("batch", _tensors(theirs.batch), _tensors(ours.batch), tolerance)
    if their_weights is not None and our_weights is not None:
        weights = compare_tables("weights", their_weights, our_weights, tolerance)
    return StepComparison(
        step=theirs.number,
        losses=(float(their_loss), float(our_loss)),
        batch=batch,
        forward=compare_tables("forward", their_outputs, our_outputs, tolerance),
        loss=Section("loss", [compare_loss(their_loss, our_loss, tolerance)]),
        gradients=compare_tables("gradients", theirs.gradients, ours.gradients, tolerance),
        weights=weights,
        layers=_compare_layers(theirs.layers, ours.layers, tolerance),
    )


def _tensors(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a batch; its lists of file names are written differently by the two sides."""
    return {name: value for name, value in batch.items() if isinstance(value, Tensor)}


def _compare_layers(theirs: Mapping[str, Any], ours: Mapping[str, Any], tolerance: Tolerance) -> Section:
    """Compare every call of every layer, in NeMo's order.

    A layer that only one side calls is no difference if a layer around it is compared, which contains its result.
    """
    section = Section("layers")
    calls = [(call, name, index) for name, of in theirs.items() for index, call in enumerate(of)]
    for call, name, index in sorted(calls, key=lambda entry: int(entry[0]["order"])):
        label = name if len(theirs[name]) == 1 else f"{name} (call {index + 1})"
        if index < len(ours.get(name, [])):
            section.items.append(_compare_call(label, call, ours[name][index], tolerance))
        else:
            _add_uncalled(section, label, name, around=ours, in_nemo=True)
    for name in ours:
        if len(ours[name]) > len(theirs.get(name, [])):
            _add_uncalled(section, name, name, around=theirs, in_nemo=False)
    return section


def _add_uncalled(section: Section, label: str, name: str, around: Mapping[str, Any], in_nemo: bool) -> None:
    """Add a layer that only one side calls; `around` are the layers that the other side calls."""
    if any(name.startswith(f"{layer}.") for layer in around):
        section.inside_others.append(label)
    else:
        section.items.append(missing(label, in_nemo))


def _compare_call(label: str, theirs: Mapping[str, Any], ours: Mapping[str, Any], tolerance: Tolerance) -> Compared:
    """Return the result of the worst tensor of a call.

    The two sides may pass arguments in another order, or more of them: each of our tensors is compared with NeMo's
    next one of the same shape and type. An output must have such a partner.
    """
    results: dict[str, list[Compared]] = {"inputs": [], "outputs": []}
    for part, found in results.items():
        left = list(theirs[part].values())
        for tensor in ours[part].values():
            partner = next((t for t in left if comparable(t, tensor)), None)
            if partner is not None:
                left = [t for t in left if t is not partner]
                found.append(compare_tensors(label, partner, tensor, tolerance))
            elif part == "outputs" and left:
                found.append(compare_tensors(label, left[0], tensor, tolerance))
    inputs = [item if item.identical else replace(item, note=item.note or "its input") for item in results["inputs"]]
    compared = [*inputs, *results["outputs"]]
    if not compared:
        return Compared(label, True, True, note="passes no tensor")
    worst = max(compared, key=lambda item: (not item.within, not item.identical, item.max_abs))
    return (results["outputs"] or inputs)[0] if worst.identical else worst


def _curves(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[CurvePoint]:
    by_step = {entry["step"]: entry for entry in ours.get("history", [])}
    for entry in theirs.get("history", []):
        if entry["step"] in by_step:
            other = by_step[entry["step"]]
            pairs = ((float(entry[name]), float(other[name])) for name in CURVES)
            yield CurvePoint(entry["step"], *pairs)


def _settings(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what may change results: settings of the run and the machine, and the model's configuration."""
    for values, names in ((metadata, _RUN_SETTINGS), (metadata.get("versions", {}), _MACHINE_SETTINGS)):
        yield from ((name, values[name]) for name in names if values.get(name) is not None)
    yield from _flattened(metadata.get("config"), "model")


def _flattened(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield values by dotted key; of classes and files only the name counts, not the module or folder."""
    name = key.rpartition(".")[2]
    if name in _WITHOUT_EFFECT or node is None:
        return
    if isinstance(node, Mapping):
        for child, value in node.items():
            yield from _flattened(value, f"{key}.{child}")
    elif name == "_target_":
        yield key, str(node).rpartition(".")[2]
    elif name in MANIFESTS:
        yield key, ", ".join(PurePath(str(path)).name for path in (node if isinstance(node, list) else [node]))
    else:
        yield key, node
