"""The tables of the HTML report: parts and steps at a glance, every value on request, both sides' settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from nest_ssl.apps.alignment.charts import SYMBOLS, state_of
from nest_ssl.apps.alignment.compare import Comparison
from nest_ssl.apps.alignment.sections import Compared, Section, worst_of
from nest_ssl.apps.alignment.texts import difference, note_words, words
from nest_ssl.apps.pages.page import folded, table
from nest_ssl.apps.pages.text import Count, Html, Words, code, escaped

MOST_MATCHING_ROWS = 200  # of a table; mismatches are always listed
Placed = tuple[int | None, Section]  # a section and its step; None before the first


def section_state(section: Section) -> str:
    if not section.aligned:
        return "different"
    return "identical" if section.all_identical else "within"


def state_mark(state: str, text: object = "") -> Html:
    """Symbol and colour, and the meaning for those who hear the page."""
    content = text or Html(f'<span class="unseen">{words(f"legend_{state}")}</span>')
    return Html(f'<span class="state {state}"><b aria-hidden="true">{SYMBOLS[state]}</b> {content}</span>')


def summary_table(comparison: Comparison) -> str:
    """One row a part, all steps together."""
    by_name: dict[str, list[Placed]] = {}
    for step, section in comparison.placed_sections:
        by_name.setdefault(section.name, []).append((step, section))
    columns = ("part", "matched", "identical_count", "worst_absolute", "worst_relative", "where")
    rows = "".join(_summary_row(name, of) for name, of in by_name.items())
    return _table("summary", columns, rows)


def step_matrix(comparison: Comparison) -> str:
    """Parts by steps: where and when a difference enters."""
    steps = "".join(f'<th scope="col">{words("step", step=step.step).heading}</th>' for step in comparison.steps)
    rows = []
    for sections in zip(*(step.sections for step in comparison.steps), strict=True):
        cells = "".join(f"<td>{_matrix_cell(section)}</td>" for section in sections)
        rows.append(f'<tr><th scope="row">{words(sections[0].name).heading}</th>{cells}</tr>')
    head = f'<thead><tr><th scope="col">{words("part")}</th>{steps}</tr></thead>'
    return f'<div class="scroll"><table class="matrix">{head}<tbody>{"".join(rows)}</tbody></table></div>'


def value_table(section: Section) -> str:
    """Every value of a section, mismatches first; folded until asked for."""
    total = Count(len(section.items))
    if not total:
        return f'<p class="empty">{words(section.name).heading}: {words("table_empty")}</p>'
    listed, unlisted = _listed(section.items)
    numeric = section.name != "structure"
    columns = ["column_order", "column_name", "column_result"]
    if numeric:
        columns += ["column_relative", "column_mean", "column_std", "column_shape"]
    rows = "".join(_value_row(position, item, numeric) for position, item in listed)
    counts = words("table_summary", matched=Count(section.matched), total=total)
    title = f"{state_mark(section_state(section), words(section.name).heading)} <small>{counts}</small>"
    return folded(title, _values([*columns, "column_note"], rows) + _unlisted(unlisted))


def one_sided_table(sections: Iterable[Section]) -> str:
    """Names that only one side has, with the reason."""
    rows = "".join(_one_sided_rows(sections))
    if not rows:
        return ""
    return folded(words("one_sided"), _values(("part", "column_name", "column_side", "column_note"), rows))


def environment_table(comparison: Comparison) -> str:
    """Versions and settings side by side; a difference is named."""
    nemo, ours = comparison.nemo, comparison.ours
    their_versions, our_versions = (_mapping(side.get("versions")) for side in (nemo, ours))
    rows: list[tuple[object, Any, Any]] = []
    for name in dict.fromkeys([*their_versions, *our_versions]):
        title = words(name).heading if name in ("system", "threads") else code(name)
        rows.append((title, their_versions.get(name), our_versions.get(name)))
    settings = ("precision", "device", "seed", "accumulate_grad_batches")
    rows += [(words(name).heading, nemo.get(name), ours.get(name)) for name in settings]
    tolerance = f"atol {comparison.tolerance.atol:g}, rtol {comparison.tolerance.rtol:g}"
    rows.append((words("tolerance").heading, tolerance, tolerance))
    body = "".join(_environment_row(*row) for row in rows)
    return _table("sides", ("setting", "nemo", "ours"), body)


def configurations(comparison: Comparison) -> str:
    """The model's configuration of both sides, once if they are the same, and the keys that differ."""
    theirs, ours = (_mapping(side.get("config")) for side in (comparison.nemo, comparison.ours))
    differing = [setting for setting in comparison.differing_settings if setting.key.startswith("model.")]
    if not differing:
        return f"<p>{words('config_same')}</p>{_yaml(words('config'), theirs)}"
    rows = "".join(_environment_row(code(setting.key), setting.nemo, setting.ours) for setting in differing)
    return (
        f"<h3>{words('config_differs')}</h3>"
        + _table("sides", ("setting", "nemo", "ours"), rows)
        + _yaml(words("config_of", side="NeMo"), theirs)
        + _yaml(words("config_of", side="nest_ssl"), ours)
    )


def _summary_row(name: str, sections: Sequence[Placed]) -> str:
    items = [(step, item) for step, section in sections for item in section.items]
    total = Count(len(items))
    if not total:
        nothing = f'<td colspan="5" class="text muted">{words("not_compared")}</td>'
        return f'<tr><th scope="row">{words(name).heading}</th>{nothing}</tr>'
    states = [section_state(section) for _, section in sections]
    state = next(state for state in ("different", "within", "identical") if state in states)
    worst, relative, where = (difference(0), difference(0), Html("–")) if name != "structure" else ("–", "–", Html("–"))
    step, item = worst_of(items)
    if item is not None:
        worst, relative, where = _absolute(item), _relative(item), code(item.name)
        if step is not None:
            where = Html(str(words("place", name=where, step=step)))
    return (
        f'<tr><th scope="row">{state_mark(state, words(name).heading)}</th>'
        f"<td>{Count(sum(item.within for _, item in items))}/{total}</td>"
        f"<td>{Count(sum(item.identical for _, item in items))}/{total}</td>"
        f'<td>{worst}</td><td>{relative}</td><td class="text">{where}</td></tr>'
    )


def _matrix_cell(section: Section) -> str:
    if not section.items:
        return f'<span class="muted">{words("not_compared")}</span>'
    worst = section.worst
    shown = state_mark(section_state(section), "0" if worst is None else _absolute(worst))
    return f"{shown}<small>{Count(section.matched)}/{Count(len(section.items))}</small>"


def _listed(items: Sequence[Compared]) -> tuple[list[tuple[int, Compared]], list[Compared]]:
    """Numbered rows to show, and those to count: mismatches in data order, then the rest from the worst down."""
    numbered = list(enumerate(items, start=1))
    mismatches = [pair for pair in numbered if not pair[1].within]
    matching = sorted(
        (pair for pair in numbered if pair[1].within), key=lambda pair: (pair[1].identical, -pair[1].max_abs)
    )
    room = max(MOST_MATCHING_ROWS - len(mismatches), 0)
    return mismatches + matching[:room], [item for _, item in matching[room:]]


def _unlisted(items: Sequence[Compared]) -> str:
    if not items:
        return ""
    key = "unlisted_identical" if all(item.identical for item in items) else "unlisted"
    return f'<p class="muted">{words(key, count=Count(len(items)))}</p>'


def _value_row(position: int, item: Compared, numeric: bool) -> str:
    """End tags that HTML lets one leave out are left out: there are thousands of rows."""
    state = state_of(item)
    cells = [position, f'<th scope="row">{code(item.name)}', state_mark(state, _absolute(item) if numeric else "")]
    if numeric:
        spread = (
            ("0", "0", "0") if item.identical else (_relative(item), difference(item.mean_abs), difference(item.std))
        )
        shape = "×".join(map(str, item.shape)) or "1"
        cells += [*spread, f"{shape} {escaped(item.dtype)}" if item.dtype else "–"]
    note = f'<td class="text">{note_words(item.note)}' if item.note else "<td>"
    return "<tr>" + "".join(c if str(c).startswith("<th") else f"<td>{c}" for c in map(str, cells)) + note


def _absolute(item: Compared) -> str:
    """`–` of a difference that is not one of numbers."""
    return difference(item.max_abs) if item.measured or item.identical else "–"


def _relative(item: Compared) -> str:
    return "–" if _absolute(item) == "–" else difference(item.max_rel)


def _one_sided_rows(sections: Iterable[Section]) -> Iterator[str]:
    for section in sections:
        compared = {item.name for item in section.items}
        sides = [("only_nemo", name) for name in section.only_nemo] + [
            ("only_ours", name) for name in section.only_ours
        ]
        for side, name in sides:
            mismatch = name in compared
            reason = words("reason_missing" if mismatch else "reason_around")
            mark = state_mark("different", words(side)) if mismatch else words(side)
            yield f'<tr><td>{words(section.name)}<th scope="row">{code(name)}<td>{mark}<td class="text">{reason}'


def _environment_row(name: object, theirs: Any, ours: Any) -> str:
    mark = (
        f' <small class="muted">({words("differs")})</small>' if None not in (theirs, ours) and theirs != ours else ""
    )
    return f'<tr><th scope="row">{name}{mark}</th><td>{_setting(theirs)}</td><td>{_setting(ours)}</td></tr>'


def _setting(value: Any) -> Html:
    return Html("–") if value is None else escaped(value)


def _yaml(title: Words, config: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100)
    return folded(title, f"<pre><code>{escaped(text)}</code></pre>")


def _mapping(value: Any) -> Mapping[str, Any]:
    """A recording's table of values; recordings of strangers may hold anything there."""
    return value if isinstance(value, Mapping) else {}


def _values(columns: Sequence[str], rows: str) -> str:
    """A table that the search looks through."""
    return _table("values", columns, rows) + f'<p class="none" hidden>{words("no_match")}</p>'


def _table(style: str, columns: Sequence[str], rows: str) -> str:
    return table(style, [words(column) for column in columns], rows)
