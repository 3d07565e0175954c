"""Print a comparison on the terminal: five sections, then the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from nest_ssl.apps.alignment.compare import Comparison, StepComparison
from nest_ssl.apps.alignment.sections import Compared, Section
from nest_ssl.apps.alignment.texts import difference, measured
from nest_ssl.environments import NEWEST_NEMO

_SHOWN = 10  # mismatches in full
_LOSS = {"identical": "identical", "within": "match", "different": "MISMATCH"}


def text_report(comparison: Comparison) -> str:
    """Return the full report: structure once, the other sections for every step."""
    theirs, ours = comparison.parameters
    lines = [*_settings(comparison), *_heading("1. Model structure")]
    lines += [f"parameters: NeMo {theirs:,}, nest_ssl {ours:,}"]
    lines += _section(comparison.structure, "tensors (name, shape, type)")
    lines += _section(comparison.initial_weights, "initial weights")
    for step in comparison.steps:
        suffix = f" (step {step.step})" if len(comparison.steps) > 1 else ""
        lines += _heading(f"2. Forward output{suffix}")
        lines += [*_section(step.batch, "inputs"), *_section(step.forward, "outputs"), *_spread(step.forward)]
        lines += [*_heading(f"3. Loss{suffix}"), *_loss(step)]
        lines += [*_heading(f"4. Parameter gradients{suffix}"), *_section(step.gradients, "gradients")]
        lines += _section(step.weights, "weights after the step")
        lines += [*_heading(f"5. Layer outputs{suffix}"), *_section(step.layers, "calls of layers"), *_first(step)]
    return "\n".join([*lines, "", *_parting(comparison), verdict(comparison)])


def summary(comparison: Comparison) -> str:
    """Return one line per step, the first differences, and the verdict."""
    lines = list(_settings(comparison))
    for step in comparison.steps:
        compared = [section for section in step.sections if section.items]
        counts = ", ".join(f"{section.name} {section.matched}/{len(section.items)}" for section in compared)
        lines += [f"step {step.step}: loss {_pair(step.losses)}; matching: {counts}", *_first(step)]
    return "\n".join([*lines, *_parting(comparison), verdict(comparison)])


def verdict(comparison: Comparison) -> str:
    """Return the verdict in one line, with a hint if another version of NeMo explains a difference."""
    steps = f"{len(comparison.steps)} step{'s' if len(comparison.steps) > 1 else ''}"
    how = f"{steps}, {comparison.numbers:,} numbers compared" + (", replayed" if comparison.replayed else "")
    if comparison.identical:
        return f"BIT-IDENTICAL: {how}"
    if comparison.aligned:
        return f"ALIGNED within {comparison.tolerance}: {how}"
    hint = ""
    if comparison.other_stream is not None:
        hint = (
            f"\nNeMo {comparison.other_stream} does not draw the random numbers of NeMo {NEWEST_NEMO}, which nest_ssl "
            "follows: compare the mathematics with `nest-ssl align --replay`"
        )
    return f"DIFFERENT beyond {comparison.tolerance}: {how}{hint}"


def described(item: Compared) -> str:
    """Return a value's name and how it differs."""
    if not item.measured:
        return f"{item.name}: {item.note}"
    where = f" ({item.note})" if item.note else ""
    return f"{item.name}: {_amounts(item)}{where}"


def _heading(text: str) -> list[str]:
    return ["", text, "-" * len(text)]


def _settings(comparison: Comparison) -> Iterator[str]:
    """Yield the settings that differ between the two runs; nothing if they are the same."""
    differing = comparison.differing_settings
    if differing:
        yield "settings that differ between the two runs:"
        yield from (f"  {line}" for line in differing[:_SHOWN])
    if len(differing) > _SHOWN:
        yield f"  and {len(differing) - _SHOWN} more"


def _section(section: Section, what: str) -> Iterator[str]:
    total = len(section.items)
    if not total:  # given to our side in a replay, or not recorded
        return
    share = f"{100 * section.matched / total:.1f} %"
    yield f"{what}: {section.matched} of {total} match ({share}), {section.identical} to the last bit"
    worst = section.worst
    if worst is not None and worst.measured and worst.max_abs:
        yield f"  worst: {worst.name}, {_amounts(worst)}"
    inside = section.inside_others
    if inside:
        names = ", ".join(inside[:_SHOWN])
        yield f"  {len(inside)} more, called by one side only, are seen in the layers around them: {names}"
    mismatches = section.mismatches
    if mismatches:
        yield f"  the first {min(_SHOWN, len(mismatches))} of {len(mismatches)} mismatches:"
        yield from (f"    {described(item)}" for item in mismatches[:_SHOWN])


def _spread(section: Section) -> Iterator[str]:
    for item in section.items:
        if not item.identical and not item.note:
            largest, mean, deviation = map(difference, (item.max_abs, item.mean_abs, item.std))
            yield f"  {item.name}: largest {largest}, mean {mean}, deviation {deviation}"


def _loss(step: StepComparison) -> Iterator[str]:
    theirs, ours = map(measured, step.losses)
    (item,) = step.loss.items
    yield f"NeMo {theirs}, nest_ssl {ours}: {_LOSS[item.state]}, difference {difference(item.max_abs)}"
    if item.note:
        yield f"  {item.note}"


def _first(step: StepComparison) -> Iterator[str]:
    """Yield the first layers that differ: later differences may only be consequences."""
    beyond = next((item for item in step.layers.items if not item.within), None)
    first = next((item for item in step.layers.items if not item.identical), None)
    if beyond is not None:
        yield f"FIRST LAYER THAT DIVERGES, in the order of data: {described(beyond)}"
    if first is not None and first is not beyond:
        yield f"first layer that differs at all: {described(first)}"


def _parting(comparison: Comparison) -> Iterator[str]:
    """Yield the first step whose logged values differ; its tensors may not have been recorded."""
    point = comparison.first_parting
    if point is not None:
        same_rate = point.compared("lr", comparison.tolerance).within
        rate = "" if same_rate else f", learning rate {_pair(point.lr)}"
        curves = f"loss {_pair(point.loss)}, gradient norm {_pair(point.grad_norm)}"
        yield f"the runs part at step {point.step}: {curves}{rate}"


def _amounts(item: Compared) -> str:
    return f"absolute {difference(item.max_abs)}, relative {difference(item.max_rel)}"


def _pair(pair: tuple[float, float]) -> str:
    return " / ".join(map(measured, pair))
