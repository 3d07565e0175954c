"""The reference pages: up to date, complete, and with the same keys in both languages."""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nest_ssl.apps.reference.descriptions import ReferenceSection, check, problems
from nest_ssl.apps.reference.options import OPTIMIZER_NAMES, SCHEDULER_NAMES, Option, Schema
from nest_ssl.apps.reference.pages import JSON_SCHEMAS, PAGES, render, render_pages
from nest_ssl.config.targets import TARGETS
from nest_ssl.errors import NestError

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
OUTDATED = "write them again: python tools/write_configuration_reference.py"
FIRST_CELL = re.compile(r"\| ((?:`[^`]+`(?:, )?)+) \|")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return render_pages()


def test_every_key_is_described_once_and_no_other(sections: list[ReferenceSection], schema: Schema) -> None:
    assert list(problems(sections, schema)) == []


@pytest.mark.parametrize("page", [*PAGES.values(), *JSON_SCHEMAS.values()])
def test_pages_are_what_the_command_writes(page: str, pages: dict[str, str]) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == pages[page], OUTDATED


def test_the_command_writes_pages_and_schemas(
    tmp_path: Path, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["write_configuration_reference.py", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "tools" / "write_configuration_reference.py"), run_name="__main__")
    assert stopped.value.code == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == pages
    assert "configuration.zh.md" in capsys.readouterr().out


def test_both_languages_have_the_same_keys(pages: dict[str, str]) -> None:
    english, chinese = (_keys(pages[page]) for page in PAGES.values())
    assert english == chinese
    assert len(english) > 300


@pytest.mark.parametrize("page", PAGES.values())
def test_every_class_that_can_be_named_is_there(page: str, pages: dict[str, str]) -> None:
    assert not [path for path in TARGETS if f"`{path}`" not in pages[page]]


@pytest.mark.parametrize("page", PAGES.values())
def test_links_lead_somewhere(page: str, pages: dict[str, str]) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", pages[page]):
        file, _, place = target.partition("#")
        if "://" in target:
            continue
        text = (DOCS / file).read_text(encoding="utf-8") if file else pages[page]
        assert not place or place in _places(text), target


def test_a_new_key_without_description_is_named(sections: list[ReferenceSection], schema: Schema) -> None:
    grown = {**schema, "model.masking": {**schema["model.masking"], "new_option": Option("int", "3")}}
    with pytest.raises(NestError, match=r"model\.masking\.new_option: not described"):
        check(sections, grown)


def test_a_description_of_what_is_gone_is_named(sections: list[ReferenceSection], schema: Schema) -> None:
    shrunk = {**schema, "model.masking": {k: v for k, v in schema["model.masking"].items() if k != "freeze"}}
    with pytest.raises(NestError, match=r"model\.masking\.freeze: described, but nothing accepts it"):
        check(sections, shrunk)


def test_a_key_that_has_an_effect_is_not_described_as_having_none(
    sections: list[ReferenceSection], schema: Schema
) -> None:
    data = {**schema["model.train_ds"], "labels": Option()}
    with pytest.raises(NestError, match=r"model\.train_ds\.labels: described as without effect"):
        check(sections, {**schema, "model.train_ds": data})


def test_words_for_a_default_that_the_code_no_longer_has_are_named(
    sections: list[ReferenceSection], schema: Schema
) -> None:
    data = schema["model.train_ds"]
    changed = {**schema, "model.train_ds": {**data, "shuffle_n": replace(data["shuffle_n"], default="2 * batch_size")}}
    with pytest.raises(NestError, match=r"model\.train_ds\.shuffle_n: its default is described for 'null'"):
        check(sections, changed)


def test_defaults_on_the_pages_are_those_of_the_code(sections: list[ReferenceSection], schema: Schema) -> None:
    """Change every default: the page shows the new one, unless words describe a computed default."""
    marked = {
        node: {key: replace(option, default=f"{node}/{key}") for key, option in options.items()}
        for node, options in schema.items()
    }
    page = render(sections, marked, "en")
    for section in sections:
        if not section.grouped and section.node not in (OPTIMIZER_NAMES, SCHEDULER_NAMES):
            plain = [row.keys[0] for row in section.rows if row.default is None]
            assert not [key for key in plain if f"| `{section.node}/{key}` |" not in page]


def _keys(page: str) -> list[str]:
    """Return every key in the first column of a table, in order."""
    rows = (FIRST_CELL.match(line) for line in page.splitlines())
    return [key for row in rows if row for key in re.findall(r"`([^`]+)`", row[1])]


def _places(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
