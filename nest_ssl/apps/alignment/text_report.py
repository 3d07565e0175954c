"""Print a comparison on the terminal: five sections, then the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from nest_ssl.apps.alignment.compare import Comparison, StepComparison
from nest_ssl.apps.alignment.sections import Compared, Section
from nest_ssl.apps.alignment.texts import difference, measured
from nest_ssl.environments import NEWEST_NEMO

_SHOWN = 10  # mismatches in full


def text_report(comparison: Comparison) -> str:
    """Return the full report: structure once, the other sections for every step."""
    lines = [*_settings(comparison), *_heading("1. Model structure"), *_structure(comparison)]
    for step in comparison.steps:
        suffix = f" (step {step.step})" if len(comparison.steps) > 1 else ""
        lines += [
            *_heading(f"2. Forward output{suffix}"),
            *_section(step.batch, "inputs"),
            *_section(step.forward, "outputs"),
        ]
        lines += [*_spread(step.forward.items)]
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
        lines += [
            f"step {step.step}: loss {_pair(step.losses)}; matching: {counts}",
            *_first(step),
        ]
    return "\n".join([*lines, *_parting(comparison), verdict(comparison)])


def verdict(comparison: Comparison) -> str:
    """Return the verdict in one line."""
    steps = f"{len(comparison.steps)} step{'s' if len(comparison.steps) > 1 else ''}"
    how = f"{steps}, {comparison.numbers:,} numbers compared" + (", replayed" if comparison.replayed else "")
    if comparison.identical:
        return f"BIT-IDENTICAL: {how}"
    limits = f"atol {comparison.tolerance.atol:g}, rtol {comparison.tolerance.rtol:g}"
    if comparison.aligned:
        return f"ALIGNED within {limits}: {how}"
    return f"DIFFERENT beyond {limits}: {how}{_hint(comparison)}"


def _hint(comparison: Comparison) -> str:
    version = other_stream(comparison)
    if version is None:
        return ""
    return (
        f"\nNeMo {version} does not draw the random numbers of NeMo {NEWEST_NEMO}, which nest_ssl follows: "
        "compare the mathematics with `nest-ssl align --replay`"
    )


def other_stream(comparison: Comparison) -> str | None:
    """Return NeMo's version if it draws its random numbers in another order, which is no error; else None."""
    version = comparison.nemo.get("versions", {}).get("nemo", NEWEST_NEMO)
    return None if version == NEWEST_NEMO or comparison.replayed else str(version)


def _heading(text: str) -> Iterator[str]:
    yield ""
    yield text
    yield "-" * len(text)


def _settings(comparison: Comparison) -> Iterator[str]:
    """Yield the settings that differ between the two runs; nothing if they are the same."""
    differing = comparison.differing_settings
    if differing:
        yield "settings that differ between the two runs:"
        yield from (f"  {line}" for line in differing[:_SHOWN])
    if len(differing) > _SHOWN:
        yield f"  and {len(differing) - _SHOWN} more"


def _structure(comparison: Comparison) -> Iterator[str]:
    theirs, ours = comparison.parameters
    yield f"parameters: NeMo {theirs:,}, nest_ssl {ours:,}"
    yield from _section(comparison.structure, "tensors (name, shape, type)")
    yield from _section(comparison.initial_weights, "initial weights")


def _section(section: Section, what: str) -> Iterator[str]:
    total = len(section.items)
    if not total:  # given to our side in a replay, or not recorded
        return
    share = f"{100 * section.matched / total:.1f} %"
    yield f"{what}: {section.matched} of {total} match ({share}), {section.identical} to the last bit"
    worst = section.worst
    if worst is not None and worst.measured and worst.max_abs:
        yield f"  worst: {worst.name}, absolute {_amount(worst.max_abs)}, relative {_amount(worst.max_rel)}"
    missing = {item.name for item in section.items if item.note.startswith("only in")}
    inside = [name for name in section.only_nemo if name not in missing]
    if inside:
        yield f"  NeMo calls {len(inside)} more, seen here in the layers around them: {', '.join(inside[:_SHOWN])}"
    mismatches = section.mismatches
    if mismatches:
        yield f"  the first {min(_SHOWN, len(mismatches))} of {len(mismatches)} mismatches:"
        yield from (f"    {described(item)}" for item in mismatches[:_SHOWN])


def _spread(items: list[Compared]) -> Iterator[str]:
    for item in items:
        if not item.identical and not item.note:
            largest, mean, deviation = map(_amount, (item.max_abs, item.mean_abs, item.std))
            yield f"  {item.name}: largest {largest}, mean {mean}, deviation {deviation}"


def _parting(comparison: Comparison) -> Iterator[str]:
    """Yield the first step whose logged values differ; its tensors may not have been recorded."""
    point = comparison.first_parting
    if point is not None:
        losses, norms, rates = map(_pair, (point.loss, point.grad_norm, point.lr))
        rate = "" if point.agrees("lr", comparison.tolerance) else f", learning rate {rates}"
        yield f"the runs part at step {point.step}: loss {losses}, gradient norm {norms}{rate}"


def _loss(step: StepComparison) -> Iterator[str]:
    theirs, ours = map(_value, step.losses)
    (item,) = step.loss.items
    how = "identical" if item.identical else "match" if item.within else "MISMATCH"
    yield f"NeMo {theirs}, nest_ssl {ours}: {how}, difference {_amount(item.max_abs)}"
    if item.note:
        yield f"  {item.note}"


def _first(step: StepComparison) -> Iterator[str]:
    """Yield the first layers that differ: later differences may only be consequences."""
    beyond = next(iter(step.layers.mismatches), None)
    first = step.layers.first_difference
    if beyond is not None:
        yield f"FIRST LAYER THAT DIVERGES, in the order of data: {described(beyond)}"
    if first is not None and first is not beyond:
        yield f"first layer that differs at all: {described(first)}"


def described(item: Compared) -> str:
    """Return a value's name and how it differs."""
    if not item.measured:
        return f"{item.name}: {item.note}"
    where = f" ({item.note})" if item.note else ""
    return f"{item.name}: absolute {_amount(item.max_abs)}, relative {_amount(item.max_rel)}{where}"


def _amount(value: float) -> str:
    """Return a difference with the digits of the page, in ASCII for every terminal."""
    return difference(value).replace("∞", "inf")


def _value(value: float) -> str:
    return measured(value).replace("∞", "inf")


def _pair(pair: tuple[float, float]) -> str:
    return " / ".join(map(_value, pair))
