"""docs/parity.md has a row for every variant of the parity tests, and every row says equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.parity.matrix_words import CHINESE, ENGLISH, Language
from tests.parity.variants import GROUPS, VARIANTS

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {"parity.md": ENGLISH, "parity.zh.md": CHINESE}
ROW = re.compile(r"\| `(?P<name>\w+)` \|.*\| (?P<theirs>\S+ `\w+`) \| (?P<ours>\S+ `\w+`) \| (?P<equal>[^|]*) \|")
OUTDATED = "make it again: python start.py parity --matrix docs/parity.md"


def _rows(page: str) -> list[re.Match[str]]:
    return [row for row in map(ROW.fullmatch, (DOCS / page).read_text(encoding="utf-8").splitlines()) if row]


@pytest.mark.parametrize("page", PAGES)
def test_every_variant_has_one_row(page: str) -> None:
    assert [row["name"] for row in _rows(page)] == list(VARIANTS), OUTDATED


@pytest.mark.parametrize(("page", "language"), PAGES.items())
def test_every_row_says_equal(page: str, language: Language) -> None:
    yes = language.equal.format("")
    assert not [row["name"] for row in _rows(page) if not row["equal"].startswith(yes)]


@pytest.mark.parametrize("page", PAGES)
def test_both_sides_have_the_same_digest(page: str) -> None:
    assert not [row["name"] for row in _rows(page) if row["theirs"].split()[1] != row["ours"].split()[1]]


@pytest.mark.parametrize("page", PAGES)
def test_changes_and_steps_are_those_of_the_variants(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, variant in VARIANTS.items():
        changes = "".join(f"[^|]*`{re.escape(change.replace('model.', '', 1))}`" for change in variant.changes)
        assert re.search(rf"\| `{name}` \| {variant.base}{changes}[^|]* \| {variant.steps} \|", text), OUTDATED


def test_no_two_variants_share_a_name() -> None:
    assert len(VARIANTS) == sum(len(group) for group in GROUPS.values())


@pytest.mark.parametrize("language", PAGES.values(), ids=PAGES)
def test_every_group_has_a_heading(language: Language) -> None:
    assert list(language.headings) == list(GROUPS)
