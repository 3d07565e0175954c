"""The verdict of a comparison: equal or not, what that is based on, and where to look if not."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from nest_ssl.apps.alignment.compare import Comparison, CurveName, CurvePoint
from nest_ssl.apps.alignment.sections import Compared, Section, worst_of
from nest_ssl.apps.alignment.text_report import other_stream
from nest_ssl.apps.alignment.texts import note_words, number, words
from nest_ssl.apps.pages.text import Count, Words, code
from nest_ssl.environments import NEWEST_NEMO

_SETTINGS_SHOWN = 5
_BEFORE_LAYERS = ("structure", "initial weights", "batch")


def state_of_all(comparison: Comparison) -> str:
    """Return the verdict: `identical`, `within` or `different`."""
    if comparison.identical:
        return "identical"
    return "within" if comparison.aligned else "different"


def findings(comparison: Comparison) -> Iterator[Words]:
    """Yield what the verdict is based on."""
    if not comparison.steps:
        yield words("no_step")
        return
    state = state_of_all(comparison)
    values = [item for _, section in comparison.placed_sections for item in section.items]
    counts = _counts(comparison)
    equal, mismatches = (sum(item.identical for item in values), sum(not item.within for item in values))
    yield words(f"rests_{state}", **counts, values=Count(len(values)), equal=Count(equal), mismatches=Count(mismatches))
    if equal < len(values):
        yield _worst(comparison)
    if comparison.curves:
        yield _curve_finding(comparison.curves)


def where_to_look(comparison: Comparison) -> Iterator[Words]:
    """Yield the first mismatch, the first layer that diverges and the first bit that differs; each place once."""
    differing = comparison.differing_settings
    if differing:
        shown = Markup(", ").join(code(setting) for setting in differing[:_SETTINGS_SHOWN])
        yield words("settings_differ", settings=shown, more=Count(max(0, len(differing) - _SETTINGS_SHOWN)))
    version = other_stream(comparison)
    if version is not None:
        yield words("other_stream", version=version, ours=NEWEST_NEMO)
    placed = comparison.placed_sections
    mismatches = [(step, section, item) for step, section in placed for item in section.mismatches]
    if not mismatches:
        assert comparison.first_parting is not None
        yield words("curves_part", step=comparison.first_parting.step)
        return
    _, section, item = mismatches[0]
    if section.name in _BEFORE_LAYERS:
        yield words("before_layers", section=words(section.name), name=code(item.name), absolute=_amount(item))
    layer = next((found for found in mismatches if found[1].name == "layers"), None)
    if layer is not None:
        yield _first_layer(*layer)
    elif section.name not in _BEFORE_LAYERS:
        yield words("no_layer", section=words(section.name), name=code(item.name), absolute=_amount(item))
    step, section, first = next((step, of, of.first_difference) for step, of in placed if of.first_difference)
    if first is not None and first.within:
        place = words("place", name=words(section.name), step=step)
        yield words("first_bit", name=code(first.name), section=place, absolute=number(first.max_abs))


def _first_layer(step: int | None, section: Section, item: Compared) -> Words:
    return words(
        "first_layer",
        name=code(item.name),
        step=step,
        position=Count(section.items.index(item) + 1),
        calls=Count(len(section.items)),
        absolute=_amount(item),
        relative=number(item.max_rel),
    )


def _amount(item: Compared) -> Markup | Words:
    """Return how large a difference is, or its note if it is none of numbers."""
    return Markup("<strong>{}</strong>").format(number(item.max_abs)) if item.measured else note_words(item.note)


def _worst(comparison: Comparison) -> Words:
    """Return the largest difference that is a number."""
    place, item = worst_of([((step, of), item) for step, of in comparison.placed_sections for item in of.items])
    assert place is not None  # asked for where something differs
    assert item is not None
    step, section = place
    name = words(section.name)
    where = name if step is None else words("place", name=name, step=step)
    return words(
        "worst",
        absolute=_amount(item),
        relative=number(item.max_rel),
        name=code(item.name),
        section=where,
    )


def _curve_finding(curves: list[CurvePoint]) -> Words:
    """Return how the curves differ; they may have more steps than were recorded and compared."""
    apart = [(point.step, max(point.difference("loss"), point.difference("grad_norm"))) for point in curves]
    differing = [pair for pair in apart if pair[1] > 0]
    if not differing:
        return words("curves_equal", steps=Count(len(curves)))
    worst = number(max(worst for _, worst in differing))
    return words("curves_differ", step=differing[0][0], worst=worst, steps=Count(len(curves)))


def curve_caption(comparison: Comparison, name: CurveName) -> Words:
    apart = [point.difference(name) for point in comparison.curves]
    equal = Count(sum(value == 0 for value in apart))
    what = words(f"curve_{name}")
    return words("curve_caption", what=what, steps=Count(len(apart)), equal=equal, worst=number(max(apart)))


def learning_rate(comparison: Comparison) -> Words:
    """Return from which step on the learning rates differ."""
    step = next((point.step for point in comparison.curves if point.difference("lr") > 0), None)
    return words("lr_equal") if step is None else words("lr_differs", step=step)


def _counts(comparison: Comparison) -> dict[str, Count]:
    """Return how much was compared: calls of layers, and the tensors of all other parts."""
    sections = [section for _, section in comparison.placed_sections]
    layers = [section for section in sections if section.name == "layers"]
    tensors = [section for section in sections if section.name not in ("layers", "structure")]
    return {
        "steps": Count(len(comparison.steps)),
        "calls": Count(sum(len(section.items) for section in layers)),
        "tensors": Count(sum(len(section.items) for section in tensors)),
        "numbers": Count(comparison.numbers),
    }


def tiles(comparison: Comparison) -> list[tuple[Words, str]]:
    """Return the numbers that stand beside the verdict."""
    theirs, ours = (Count(count) for count in comparison.parameters)
    counted = {**_counts(comparison), "parameters": f"{theirs} {'=' if theirs == ours else '≠'} {ours}"}
    return [(words(f"tile_{name}"), str(count)) for name, count in counted.items()]
