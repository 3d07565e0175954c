"""The first thing that the HTML report says: equal or not, what that rests on, and where to look if not."""

from __future__ import annotations

from collections.abc import Iterator

from nest_ssl.apps.alignment.charts import SYMBOLS
from nest_ssl.apps.alignment.compare import Comparison, CurvePoint
from nest_ssl.apps.alignment.sections import Compared, Section, worst_of
from nest_ssl.apps.alignment.text_report import other_stream
from nest_ssl.apps.alignment.texts import note_words, number, words
from nest_ssl.apps.pages.text import Count, Html, Words, code
from nest_ssl.environments import NEWEST_NEMO

_SETTINGS_SHOWN = 5
_BEFORE_LAYERS = ("structure", "initial weights", "batch")


def state_of_all(comparison: Comparison) -> str:
    """The verdict in one word."""
    if comparison.identical:
        return "identical"
    return "within" if comparison.aligned else "different"


def verdict_panel(comparison: Comparison) -> str:
    """The verdict, large, and the plain sentences under it."""
    state = state_of_all(comparison)
    sentences = "".join(f"<p>{sentence}</p>" for sentence in _findings(comparison))
    if state == "different" and comparison.steps:
        places = "".join(f"<p>{sentence}</p>" for sentence in _where_to_look(comparison))
        sentences = f'<div class="look"><h2>{words("look_here")}</h2>{places}</div>{sentences}'
    replay = words("replayed" if comparison.replayed else "independent")
    return (
        f'<section class="verdict {state}" aria-labelledby="verdict">'
        f'<h1 id="verdict"><span class="symbol" aria-hidden="true">{SYMBOLS[state]}</span> {words(state)}</h1>'
        f'{sentences}<p class="muted">{replay}</p>{_tiles(comparison)}</section>'
    )


def _findings(comparison: Comparison) -> Iterator[Words]:
    """What the verdict rests on."""
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


def _where_to_look(comparison: Comparison) -> Iterator[Words]:
    """The first mismatch, the first layer that diverges, and the first bit that differs, if they are not the same."""
    differing = comparison.differing_settings
    if differing:
        shown = Html(", ".join(code(setting) for setting in differing[:_SETTINGS_SHOWN]))
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


def _amount(item: Compared) -> Html | Words:
    """Its size, or what it is if it has none."""
    return Html(f"<strong>{number(item.max_abs)}</strong>") if item.measured else note_words(item.note)


def _worst(comparison: Comparison) -> Words:
    """The largest difference that is a number."""
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
    """The curves may reach beyond the recorded steps that the verdict is about."""
    apart = [(point.step, max(point.difference("loss"), point.difference("grad_norm"))) for point in curves]
    differing = [pair for pair in apart if pair[1] > 0]
    if not differing:
        return words("curves_equal", steps=Count(len(curves)))
    worst = number(max(worst for _, worst in differing))
    return words("curves_differ", step=differing[0][0], worst=worst, steps=Count(len(curves)))


def _counts(comparison: Comparison) -> dict[str, Count]:
    """Layer calls are counted apart from the tensors of the other parts."""
    sections = [section for _, section in comparison.placed_sections]
    layers = [section for section in sections if section.name == "layers"]
    tensors = [section for section in sections if section.name not in ("layers", "structure")]
    return {
        "steps": Count(len(comparison.steps)),
        "calls": Count(sum(len(section.items) for section in layers)),
        "tensors": Count(sum(len(section.items) for section in tensors)),
        "numbers": Count(comparison.numbers),
    }


def _tiles(comparison: Comparison) -> str:
    counts: dict[str, object] = {f"tile_{name}": f"{count}" for name, count in _counts(comparison).items()}
    theirs, ours = (Count(count) for count in comparison.parameters)
    counts["tile_parameters"] = f"{theirs} {'=' if theirs == ours else '≠'} {ours}"
    tiles = "".join(f"<div><dt>{words(name)}</dt><dd>{value}</dd></div>" for name, value in counts.items())
    return f'<dl class="tiles">{tiles}</dl>'
