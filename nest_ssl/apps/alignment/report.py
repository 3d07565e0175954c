"""A comparison as one HTML page: the verdict first, then where and how large differences are, then each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nest_ssl.apps.alignment import charts, verdict
from nest_ssl.apps.alignment.compare import Comparison
from nest_ssl.apps.alignment.sections import Compared, Section
from nest_ssl.apps.alignment.texts import difference, note_words, words
from nest_ssl.apps.pages import page
from nest_ssl.apps.pages.text import Words, code

FOLDER = Path(__file__).parent


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
    """Yield numbers of parameters, versions and settings of both sides."""
    theirs, ours = comparison.parameters
    yield words("parameters"), f"{theirs:,}", f"{ours:,}"
    their_versions, our_versions = (side.get("versions", {}) for side in (comparison.nemo, comparison.ours))
    for name in dict.fromkeys([*their_versions, *our_versions]):
        yield code(name), their_versions.get(name), our_versions.get(name)
    for name in ("precision", "device", "seed", "accumulate_grad_batches"):
        yield code(name), comparison.nemo.get(name), comparison.ours.get(name)
    yield words("tolerance"), comparison.tolerance, comparison.tolerance


def _differing_keys(comparison: Comparison) -> list[tuple[Markup, Any, Any]]:
    """Return the keys of the model's configuration that differ, with the values of both sides."""
    found = comparison.differing_settings
    return [(code(setting.key), setting.nemo, setting.ours) for setting in found if setting.key.startswith("model.")]


page.templates(FOLDER).globals.update(
    words=words,
    note_words=note_words,
    charts=charts,
    verdict=verdict,
    symbols=charts.SYMBOLS,
    columns=lambda keys: [words(key) for key in keys],
    parts=_parts,
    shown=_shown,
    environment=_environment,
    differing_keys=_differing_keys,
)
