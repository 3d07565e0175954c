"""Write the reference as Markdown, one page per language."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from nest_ssl.apps.reference.descriptions import Language, ReferenceSection, Row, check, read_sections
from nest_ssl.apps.reference.json_schema import render_json_schema
from nest_ssl.apps.reference.options import (
    DATASET,
    OPTIMIZER_NAMES,
    REQUIRED,
    SCHEDULER_NAMES,
    TOP_LEVEL,
    TRAINER,
    Schema,
    as_yaml,
    in_preset,
    read_schema,
    same_value,
    target_paths,
)
from nest_ssl.atomic import atomic_write

PAGES: dict[Language, str] = {"en": "configuration.md", "zh": "configuration.zh.md"}
JSON_SCHEMAS: dict[Language, str] = {"en": "configuration.schema.json", "zh": "configuration.zh.schema.json"}
_WORDS = Path(__file__).with_name("page.yaml")
_VALUES = (OPTIMIZER_NAMES, SCHEDULER_NAMES)  # tables of the values of a key, with the options of each


def write_pages(folder: Path) -> list[Path]:
    """Write the reference and the JSON schema in both languages; return the files."""
    pages = render_pages()
    for name, text in pages.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in pages]


def render_pages() -> dict[str, str]:
    """Return file name -> text."""
    schema, sections = read_schema(), read_sections()
    check(sections, schema)
    return {
        **{name: render(sections, schema, language) for language, name in PAGES.items()},
        **{name: render_json_schema(sections, schema, language) for language, name in JSON_SCHEMAS.items()},
    }


def render(sections: Sequence[ReferenceSection], schema: Schema, language: Language) -> str:
    """Return the page in one language."""
    return _Page(schema, language).text(sections)


@dataclass(frozen=True)
class _Page:
    schema: Schema
    language: Language

    @cached_property
    def words(self) -> Mapping[str, str]:
        return yaml.safe_load(_WORDS.read_text(encoding="utf-8"))[self.language]

    def text(self, sections: Sequence[ReferenceSection]) -> str:
        headings = [self._heading(section) for section in sections if not section.sub]
        contents = "".join(f"- [{heading}](#{_anchor(heading)})\n" for heading in headings)
        parts = (part for section in sections for part in self._parts(section))
        return "\n".join([self.words["opening"], contents, *parts])

    def _heading(self, section: ReferenceSection) -> str:
        title = section.title[self.language]
        plain = section.sub or section.node == TOP_LEVEL
        return title if plain else f"{title}{self.words['colon']}`{section.node}`"

    def _parts(self, section: ReferenceSection) -> Iterator[str]:
        yield f"{'###' if section.sub else '##'} {self._heading(section)}\n"
        if section.intro is not None:
            yield section.intro[self.language].strip() + "\n"
        paths = [] if section.sub else target_paths(section.node)
        if paths:
            yield f"`_target_`: {', '.join(map(_code, paths))}\n"
        if section.rows:
            yield "".join(f"| {' | '.join(line)} |\n" for line in self._table(section))

    def _table(self, section: ReferenceSection) -> Iterator[list[str]]:
        """Yield lines of cells, without columns that are empty in all rows."""
        if section.node in _VALUES:
            titles, cells = ["name", "options", "meaning"], self._value_cells
        elif section.grouped:
            titles, cells = ["keys", "accepted", "meaning"], self._group_cells
        else:
            titles, cells = ["key", "type", "default", "file", "meaning"], self._key_cells
        rows = [cells(section.node, row) for row in section.rows]
        used = [column for column in range(len(titles)) if any(row[column] for row in rows)]
        yield [self.words[titles[column]] for column in used]
        yield ["---"] * len(used)
        for row in rows:
            yield [" ".join(row[column].replace("|", "\\|").split()) for column in used]

    def _key_cells(self, node: str, row: Row) -> list[str]:
        (key,) = row.keys
        option = self.schema[node][key]
        default = self.words["required"] if option.default == REQUIRED else _code(option.default)
        if row.default is not None:
            default = row.default[self.language]
        in_file = self._in_file(node, key)
        shown = "" if in_file == default else in_file
        kind = None if node == TRAINER else row.type or option.type  # Lightning documents its own
        return [_code(key), _code(kind), default, shown, self._meaning(row)]

    def _group_cells(self, node: str, row: Row) -> list[str]:
        options = [self.schema[node][key] for key in row.keys]
        types = {self.words["any"] if option.status == "idle" else _code(option.type) for option in options}
        accepted = types.pop() if len(types) == 1 and row.same_as is None else ""
        return [", ".join(map(_code, row.keys)), accepted, self._meaning(row)]

    def _value_cells(self, node: str, row: Row) -> list[str]:
        (value,) = row.keys
        return [_code(value), _code(self.schema[node][value].type), self._meaning(row)]

    def _meaning(self, row: Row) -> str:
        meaning = row.meaning[self.language].strip()
        return meaning if row.nemo is None else f"{meaning}{self.words['nemo']}{row.nemo[self.language].strip()}"

    def _in_file(self, node: str, key: str) -> str:
        """Return the value in the default configuration file, if it differs from the default."""
        value, default = _written(node, key), self.schema[node][key].default
        shown = [_code(value)] if value is not None and not same_value(value, default) else []
        validation = _written("model.validation_ds", key) if node == DATASET else value
        if validation not in (None, value):
            shown.append(f"{self.words['validation']} {_code(validation)}")
        return "; ".join(shown)


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _written(node: str, key: str) -> str | None:
    written = in_preset(node)
    value = written.get(key) if isinstance(written, Mapping) else None
    return None if value is None or isinstance(value, Mapping) else as_yaml(value)


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""
