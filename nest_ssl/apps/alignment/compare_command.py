"""A comparison as text, and `tools/compare_nemo_nest_outputs.py`, which prints five sections and a verdict."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nest_ssl.apps.alignment.compare import Comparison, StepComparison, compare
from nest_ssl.apps.alignment.recorder.callback import parse_steps
from nest_ssl.apps.alignment.recorder.files import RecordingError
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.apps.alignment.sections import Compared, Section, Tolerance
from nest_ssl.apps.alignment.texts import difference, measured
from nest_ssl.atomic import atomic_write
from nest_ssl.environments import NEWEST_NEMO
from nest_ssl.errors import FAILED, NestError
from nest_ssl.printable import say, say_lines

_SHOWN = 10  # mismatches in full
_LOSS = {"identical": "identical", "within": "match", "different": "MISMATCH"}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if everything matches, 1 on any mismatch, 2 if nothing could be compared."""
    options = _parse(argv)
    try:
        tolerance = Tolerance(options.atol, options.rtol)
        nemo, nest = Recording(options.nemo_output_dir), Recording(options.nest_output_dir)
        steps = None if options.step == "all" else list(parse_steps(options.step, "--step"))
        comparison = compare(nemo, nest, steps, tolerance)
        say(f"NeMo: {_side(nemo)}")
        say(f"nest_ssl: {_side(nest)}")
        say_lines(text_report(comparison))
        if options.save_comparison is not None:
            save_comparison(comparison, options.save_comparison)
            say(f"saved {options.save_comparison}")
    except (NestError, RecordingError, OSError) as error:
        say(f"error: {error}", error=True)
        return FAILED
    return int(not comparison.aligned)


def save_comparison(comparison: Comparison, path: Path) -> None:
    """Write all results as plain values: as JSON if the name ends in .json, else as a pickle."""
    results = as_plain(comparison)
    as_json = path.suffix.lower() == ".json"
    content = json.dumps(results, indent=1).encode() if as_json else pickle.dumps(results, protocol=4)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def as_plain(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as tables, lists and numbers; infinity and NaN become None, because JSON has neither."""
    sides = {"nemo": comparison.nemo, "ours": comparison.ours}
    results = {
        "verdict": verdict(comparison),
        "aligned": comparison.aligned,
        "identical": comparison.identical,
        **dataclasses.asdict(dataclasses.replace(comparison, nemo={}, ours={})),
        "versions": {side: metadata.get("versions", {}) for side, metadata in sides.items()},
    }
    plain = json.loads(json.dumps(results), parse_constant=lambda name: None)
    return {key: value for key, value in plain.items() if key not in sides}


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
        yield f"  {len(inside)} more, called by one side only, are part of layers that are compared: {names}"
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


def _side(recording: Recording) -> str:
    versions = recording.metadata.get("versions", {})
    known = [f"{name} {versions[name]}" for name in ("nemo", "nest_ssl", "torch", "python") if name in versions]
    steps = ", ".join(map(str, recording.steps)) or "none"
    return f"{recording.folder} ({', '.join(known)}; steps {steps}; precision {recording.metadata.get('precision')})"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare what NeMo and nest_ssl recorded.")
    parser.add_argument("--nemo_output_dir", type=Path, required=True, help="what NeMo's script recorded")
    parser.add_argument("--nest_output_dir", type=Path, required=True, help="what train_with_saver.py recorded")
    parser.add_argument("--step", default="0", help="steps to compare: 0, 0-4, 0,10 or all (default: %(default)s)")
    parser.add_argument("--atol", type=float, default=1e-5, help="absolute tolerance (default: %(default)g)")
    parser.add_argument("--rtol", type=float, default=1e-5, help="relative tolerance (default: %(default)g)")
    parser.add_argument("--save_comparison", type=Path, help="write all results to this .pkl or .json file")
    options = parser.parse_args(argv)
    if not (options.atol >= 0 and options.rtol >= 0):
        parser.error("--atol and --rtol must be 0 or more")
    return options
