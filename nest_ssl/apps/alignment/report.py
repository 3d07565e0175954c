"""A comparison as one HTML page: the verdict first, then where and how large differences are, then each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nest_ssl.apps.alignment import charts
from nest_ssl.apps.alignment.compare import Comparison, Place
from nest_ssl.apps.alignment.sections import Compared, Section, worst_of
from nest_ssl.apps.alignment.texts import difference, note_words, words
from nest_ssl.apps.pages import page
from nest_ssl.apps.pages.text import Count, Words, code
from nest_ssl.environments import NEWEST_NEMO

FOLDER = Path(__file__).parent
_SETTINGS_SHOWN = 5
_BEFORE_LAYERS = ("structure", "initial weights", "batch")


def write_report(comparison: Comparison, path: Path) -> None:
    """Write the page, whole or not at all."""
    page.write_page(render(comparison), path)


def render(comparison: Comparison) -> str:
    """Return the whole page."""
    title = words(comparison.state)
    errors = (item.max_abs for step in comparison.steps for item in step.layers.items)
    return page.render(
        FOLDER,
        "report.html",
        title=f"{title.english} / {title.chinese}: NeMo, nest_ssl",
        media=(),
        comparison=comparison,
        tolerance=comparison.tolerance,
        scale=charts.decades(errors, comparison.tolerance.atol),  # one for all steps
    )


def _findings(comparison: Comparison) -> Iterator[Words]:
    """Yield what the verdict is based on."""
    places = comparison.places
    calls = sum(place.section.name == "layers" for place in places)
    tensors = sum(place.section.name not in ("layers", "structure") for place in places)
    equal = sum(place.item.identical for place in places)
    yield words(
        "compared",
        steps=Count(len(comparison.steps)),
        calls=Count(calls),
        tensors=Count(tensors),
        numbers=Count(comparison.numbers),
        values=Count(len(places)),
        equal=Count(equal),
        mismatches=Count(sum(not place.item.within for place in places)),
    )
    worst = worst_of(place.item for place in places)
    if worst is not None:
        place = next(place for place in places if place.item is worst)
        yield words("worst", name=code(worst.name), section=_where(place), **_amounts(worst))
    if comparison.curves:
        yield from _curve_findings(comparison)


def _where_to_look(comparison: Comparison) -> Iterator[Words]:
    """Yield the first mismatch, the first layer that diverges and the first bit that differs; each place once."""
    differing = comparison.differing_settings
    if differing:
        shown = Markup(", ").join(code(setting) for setting in differing[:_SETTINGS_SHOWN])
        yield words("settings_differ", settings=shown, more=Count(max(0, len(differing) - _SETTINGS_SHOWN)))
    if comparison.other_stream is not None:
        yield words("other_stream", version=comparison.other_stream, ours=NEWEST_NEMO)
    places = comparison.places
    mismatches = [place for place in places if not place.item.within]
    if not mismatches:
        assert comparison.first_parting is not None
        yield words("curves_part", step=comparison.first_parting.step)
        return
    first, layer = mismatches[0], next((place for place in mismatches if place.section.name == "layers"), None)
    if first.section.name in _BEFORE_LAYERS:
        yield _first_mismatch("before_layers", first)
    elif layer is None:
        yield _first_mismatch("no_layer", first)
    if layer is not None:
        calls = layer.section.items
        position, name = Count(calls.index(layer.item) + 1), code(layer.item.name)
        counts = {"step": layer.step, "position": position, "calls": Count(len(calls))}
        yield words("first_layer", name=name, **counts, **_amounts(layer.item))
    bit = next(place for place in places if not place.item.identical)
    if bit.item.within:
        yield words("first_bit", name=code(bit.item.name), section=_where(bit), absolute=difference(bit.item.max_abs))


def _first_mismatch(text: str, place: Place) -> Words:
    name, section = code(place.item.name), words(place.section.name)
    return words(text, name=name, section=section, absolute=_amounts(place.item)["absolute"])


def _where(place: Place) -> Words:
    section = words(place.section.name)
    return section if place.step is None else words("place", name=section, step=place.step)


def _amounts(item: Compared) -> dict[str, Words]:
    """Return how large a difference is, or its note if it was not measured."""
    measured = Words.same(Markup("<strong>{}</strong>").format(difference(item.max_abs)))
    absolute = measured if item.measured else note_words(item.note)
    return {"absolute": absolute, "relative": Words.same(difference(item.max_rel))}


def _curve_findings(comparison: Comparison) -> Iterator[Words]:
    """Yield how the curves differ; they may have more steps than were recorded and compared."""
    steps, logged = [point.step for point in comparison.curves], Count(len(comparison.curves))
    curves = [[item.max_abs for item in comparison.curve(name).items] for name in ("loss", "grad_norm")]
    apart = [(step, max(values)) for step, *values in zip(steps, *curves, strict=True) if any(values)]
    if apart:
        yield words("curves_differ", step=apart[0][0], worst=difference(max(worst for _, worst in apart)), steps=logged)
    else:
        yield words("curves_equal", steps=logged)
    rates = zip(steps, comparison.curve("lr").items, strict=True)
    differing_rate = next((step for step, rate in rates if not rate.identical), None)
    if differing_rate is not None:
        yield words("lr_differs", step=differing_rate)


def _parts(comparison: Comparison) -> Iterator[tuple[Section, Words | Markup]]:
    """Yield the sections, those of all steps together, and where the largest difference of each is."""
    by_step = [step.sections for step in comparison.steps]
    for sections in ([comparison.structure], [comparison.initial_weights], *zip(*by_step, strict=True)):
        part = Section(sections[0].name, [item for section in sections for item in section.items])
        worst = part.worst
        step = next((place.step for place in comparison.places if place.item is worst), None)
        if worst is None:
            yield part, Markup("–")
        else:
            yield part, code(worst.name) if step is None else words("place", name=code(worst.name), step=step)


def _shown(item: Compared | None, value: str) -> str:
    """Return the largest difference, absolute (`max_abs`) or relative (`max_rel`); `–` if it was not measured."""
    if item is None:
        return difference(0)
    return difference(getattr(item, value)) if item.measured or item.identical else "–"


def _environment(comparison: Comparison) -> Iterator[tuple[object, Any, Any]]:
    """Yield numbers of parameters, versions, settings, and the keys of the configuration that differ, of both sides."""
    theirs, ours = comparison.parameters
    yield words("parameters"), f"{theirs:,}", f"{ours:,}"
    their_versions, our_versions = (side.get("versions", {}) for side in (comparison.nemo, comparison.ours))
    for name in dict.fromkeys([*their_versions, *our_versions]):
        yield code(name), their_versions.get(name), our_versions.get(name)
    for name in ("precision", "device", "seed", "accumulate_grad_batches"):
        yield code(name), comparison.nemo.get(name), comparison.ours.get(name)
    yield words("tolerance"), comparison.tolerance, comparison.tolerance
    for setting in comparison.differing_settings:
        if setting.key.startswith("model."):
            yield code(setting.key), setting.nemo, setting.ours


page.templates(FOLDER).globals.update(
    words=words,
    note_words=note_words,
    charts=charts,
    findings=_findings,
    where_to_look=_where_to_look,
    symbols=charts.SYMBOLS,
    columns=lambda keys: [words(key) for key in keys],
    parts=_parts,
    shown=_shown,
    environment=_environment,
)
