"""The rows of the page's tables: parts and steps, every value, names of one side, both sides' settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from markupsafe import Markup

from nest_ssl.apps.alignment.charts import state_of
from nest_ssl.apps.alignment.compare import Comparison
from nest_ssl.apps.alignment.sections import Compared, Section, worst_of
from nest_ssl.apps.alignment.texts import difference, words
from nest_ssl.apps.pages.text import Words, code

MOST_MATCHING_ROWS = 200  # of a table; mismatches are always listed


@dataclass(frozen=True)
class Part:
    """One part of the comparison, all steps together; `state` is None if there was nothing to compare."""

    title: Words
    state: str | None
    matched: int
    identical: int
    total: int
    absolute: str
    relative: str
    where: Words | Markup


def section_state(section: Section) -> str:
    if not section.aligned:
        return "different"
    return "identical" if section.all_identical else "within"


def parts(comparison: Comparison) -> Iterator[Part]:
    """Yield the parts in the order of data."""
    by_name: dict[str, list[tuple[int | None, Section]]] = {}
    for step, section in comparison.placed_sections:
        by_name.setdefault(section.name, []).append((step, section))
    for name, sections in by_name.items():
        items = [(step, item) for step, section in sections for item in section.items]
        states = [section_state(section) for _, section in sections]
        step, item = worst_of(items)
        equal = "–" if name == "structure" else difference(0)
        where: Words | Markup = Markup("–")
        if item is not None:
            where = code(item.name) if step is None else words("place", name=code(item.name), step=step)
        yield Part(
            title=words(name).heading,
            state=next(state for state in ("different", "within", "identical") if state in states) if items else None,
            matched=sum(item.within for _, item in items),
            identical=sum(item.identical for _, item in items),
            total=len(items),
            absolute=equal if item is None else absolute(item),
            relative=equal if item is None else relative(item),
            where=where,
        )


def step_titles(comparison: Comparison) -> list[Words]:
    return [words("step", step=step.step).heading for step in comparison.steps]


def listed(items: Sequence[Compared]) -> tuple[list[tuple[int, Compared, str]], list[Compared]]:
    """Return the numbered rows to show with their states, and the items that are only counted.

    Mismatches come first, in data order; then the others, the largest difference first.
    """
    numbered = [(position, item, state_of(item)) for position, item in enumerate(items, start=1)]
    mismatches = [row for row in numbered if not row[1].within]
    matching = sorted((row for row in numbered if row[1].within), key=lambda row: (row[1].identical, -row[1].max_abs))
    room = max(MOST_MATCHING_ROWS - len(mismatches), 0)
    return mismatches + matching[:room], [item for _, item, _ in matching[room:]]


def absolute(item: Compared) -> str:
    """Return the largest difference, `–` if it is none of numbers."""
    return difference(item.max_abs) if item.measured or item.identical else "–"


def relative(item: Compared) -> str:
    return "–" if absolute(item) == "–" else difference(item.max_rel)


def one_sided(sections: Iterable[Section]) -> list[tuple[Section, str, str, bool]]:
    """Return the names that only one side has: section, `only_nemo` or `only_ours`, name, whether it is a mismatch."""
    rows = []
    for section in sections:
        compared = {item.name for item in section.items}
        for side, names in (("only_nemo", section.only_nemo), ("only_ours", section.only_ours)):
            rows += [(section, side, name, name in compared) for name in names]
    return rows


def environment(comparison: Comparison) -> Iterator[tuple[object, Any, Any]]:
    """Yield versions and settings of both sides."""
    nemo, ours = comparison.nemo, comparison.ours
    their_versions, our_versions = (_mapping(side.get("versions")) for side in (nemo, ours))
    for name in dict.fromkeys([*their_versions, *our_versions]):
        title = words(name).heading if name in ("system", "threads") else code(name)
        yield title, their_versions.get(name), our_versions.get(name)
    for name in ("precision", "device", "seed", "accumulate_grad_batches"):
        yield words(name).heading, nemo.get(name), ours.get(name)
    tolerance = f"atol {comparison.tolerance.atol:g}, rtol {comparison.tolerance.rtol:g}"
    yield words("tolerance").heading, tolerance, tolerance


def differing_settings(comparison: Comparison) -> list[tuple[Markup, Any, Any]]:
    """Return the keys of the model's configuration that differ, with the values of both sides."""
    found = comparison.differing_settings
    return [(code(setting.key), setting.nemo, setting.ours) for setting in found if setting.key.startswith("model.")]


def config_text(side: Mapping[str, Any]) -> str:
    """Return the model's configuration as YAML."""
    return yaml.safe_dump(dict(_mapping(side.get("config"))), sort_keys=False, allow_unicode=True, width=100)


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a recording's table of values; a stranger's recording may hold anything there."""
    return value if isinstance(value, Mapping) else {}
