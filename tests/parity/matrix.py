"""Write the table of docs/parity.md, with one row per variant, from the recordings of both sides."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.parity.bases import BASES, CORPUS, Variant
from tests.parity.compare import VariantComparison, compare, load
from tests.parity.matrix_words import CHINESE, ENGLISH, Language
from tests.parity.variants import GROUPS

DIGEST_DIGITS = 12
IMPLEMENTATIONS = ("nemo", "nest_ssl")


@dataclass(frozen=True)
class Row:
    """One variant and its results on both sides."""

    name: str
    variant: Variant
    theirs: str
    ours: str
    comparison: VariantComparison


def write_matrix(path: Path, recordings: Mapping[str, Path]) -> list[Path]:
    """Write the page in English to `path` and in Chinese next to it; `recordings` has a folder for each side."""
    rows = {name: row(name, variant, recordings) for group in GROUPS.values() for name, variant in group.items()}
    environments = {
        side: json.loads((recordings[side] / "environment.json").read_text(encoding="utf-8"))
        for side in IMPLEMENTATIONS
    }
    pages = {path: ENGLISH, path.with_suffix(f".zh{path.suffix}"): CHINESE}
    for page, language in pages.items():
        page.write_text("\n".join(lines(rows, environments, language)) + "\n", encoding="utf-8")
    return list(pages)


def row(name: str, variant: Variant, recordings: Mapping[str, Path]) -> Row:
    theirs, ours = (load(recordings[side] / f"{name}.pt") for side in IMPLEMENTATIONS)
    return Row(name, variant, result(theirs), result(ours), compare(theirs, ours))


def lines(rows: Mapping[str, Row], environments: Mapping[str, Mapping[str, str]], language: Language) -> Iterator[str]:
    """Yield the lines of the page."""
    comparisons = [row.comparison for row in rows.values()]
    verdict = language.verdict.format(
        rows=len(rows),
        equal=sum(not comparison.differences for comparison in comparisons),
        values=f"{sum(comparison.compared for comparison in comparisons):,}",
        losses=f"{sum(comparison.losses for comparison in comparisons):,}",
    )
    yield from (f"# {language.title}", "", verdict, "", language.made.format(day=date.today().isoformat()), "")
    yield from (language.environment, "|---|---|---|", *_environment_rows(environments), "")
    yield from (language.legend, "", language.bases, "")
    yield f"- {language.all_bases}: {_in_code(CORPUS)}"
    yield from (f"- `{name}`: {_in_code(changes)}" for name, changes in BASES.items())
    for heading, group in GROUPS.items():
        yield from ("", f"## {language.headings[heading]}", "", language.columns, "|---|---|---|---|---|---|")
        yield from (_table_row(rows[name], language) for name in group)


def _environment_rows(environments: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    theirs, ours = (environments[side] for side in IMPLEMENTATIONS)
    yield f"| version | {theirs['nemo']} | {ours['nest_ssl']} |"
    yield from (f"| {name} | {theirs[name]} | {ours[name]} |" for name in theirs if name in ours)


def _table_row(row: Row, language: Language) -> str:
    changes = [row.variant.base, *([_in_code(row.variant.changes)] if row.variant.changes else [])]
    if row.variant.resumed_after is not None:
        changes.append(language.resumed.format(row.variant.resumed_after))
    found = row.comparison
    equal = (
        language.equal.format(found.compared) if not found.differences else language.different.format(found.summary())
    )
    if found.empty_batches:
        equal += language.empty.format(found.empty_batches)
    cells = (f"`{row.name}`", "; ".join(changes), str(row.variant.steps), row.theirs, row.ours, equal)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _in_code(changes: tuple[str, ...]) -> str:
    """Return changes as on the command line, without the common prefix."""
    return " ".join(f"`{change.replace('model.', '', 1)}`" for change in changes)


def result(recording: Mapping[str, Any]) -> str:
    """Return the last loss and the digest, or the error."""
    if "error" in recording:
        return str(recording["error"]).splitlines()[0]
    return f"{recording['steps'][-1]['loss']:.6f} `{digest(recording)}`"


def digest(recording: Mapping[str, Any]) -> str:
    """Return a digest that is equal for two recordings if and only if `compare` finds no difference."""
    stages = {name: value for name, value in recording.items() if name != "seconds"}
    summed = hashlib.sha256()
    for piece in _pieces(stages):
        summed.update(piece)
    return summed.hexdigest()[:DIGEST_DIGITS]


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield all values with their names, in an order that does not depend on the recording."""
    if isinstance(value, Mapping):
        for name in sorted(value):
            if name != "loss" or not _of_empty_batch(value[name]):
                yield name.encode()
                yield from _pieces(value[name])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield str(index).encode()
            yield from _pieces(item)
    elif isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield (value + 0).contiguous().flatten().view(torch.uint8).numpy().tobytes()  # removes the sign of zero
    else:
        yield repr(value).encode()


def _of_empty_batch(loss: float) -> bool:
    return math.isnan(loss) or loss == 0.0
