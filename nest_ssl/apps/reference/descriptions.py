"""Read what keys mean, in both languages, from `config/schema/words/*.yaml`, and check it against the schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from nest_ssl.apps.reference.options import TRAINER, Option, Schema
from nest_ssl.config import schema as schema_package
from nest_ssl.errors import NestError

FOLDER = Path(schema_package.__file__).parent / "words"
FILES = ("run", "model", "data", "optim", "experiment")  # the order of the pages

Language = Literal["en", "zh"]
Words = Mapping[Language, str]


@dataclass(frozen=True)
class Row:
    """One key, or several that share a sentence; `type` and `default` are set only if the code does not declare them.

    `default["code"]` is what the code says of the default that the words are for: they are looked at again when it
    changes.
    """

    keys: tuple[str, ...]
    meaning: Words
    nemo: Words | None = None  # how it differs
    type: str | None = None
    default: Mapping[str, str] | None = None
    same_as: str | None = None  # the node where the keys are described


@dataclass(frozen=True)
class ReferenceSection:
    """A table of the pages: all or some of the keys of a node."""

    node: str
    title: Words
    intro: Words | None
    rows: tuple[Row, ...]
    grouped: bool  # several keys a row, without defaults
    sub: bool


def read_sections() -> list[ReferenceSection]:
    """Return all sections in the order of the pages."""
    texts = ((FOLDER / f"{name}.yaml").read_text(encoding="utf-8") for name in FILES)
    return [_section(**entry) for text in texts for entry in yaml.safe_load(text)]


def _section(
    node: str,
    title: Words,
    en: str = "",
    zh: str = "",
    keys: Mapping[str, Mapping[str, Any]] | None = None,
    groups: Sequence[Mapping[str, Any]] = (),
    sub: bool = False,
) -> ReferenceSection:
    rows = [_row(keys=[key], **row) for key, row in (keys or {}).items()] + [_row(**row) for row in groups]
    return ReferenceSection(node, title, {"en": en, "zh": zh} if en else None, tuple(rows), bool(groups), sub)


def _row(keys: Sequence[str], en: str, zh: str, **more: Any) -> Row:
    return Row(tuple(keys), {"en": en, "zh": zh}, **more)


def check(sections: Sequence[ReferenceSection], schema: Schema) -> None:
    """Refuse descriptions that do not fit the code; the error names the first wrong key."""
    for problem in problems(sections, schema):
        raise NestError(f"{problem} (nest_ssl/config/schema/words)")


def problems(sections: Sequence[ReferenceSection], schema: Schema) -> Iterator[str]:
    """Yield every key that has no description, that is described but not accepted, or whose description is wrong."""
    rows = [(section.node, row) for section in sections for row in section.rows]
    described = Counter((node, key) for node, row in rows for key in row.keys)
    for node, options in schema.items():
        if node != TRAINER:  # Lightning documents its keys
            yield from (f"{node}.{key}: not described" for key in options if (node, key) not in described)
    for (node, key), times in described.items():
        if key not in schema.get(node, {}):
            yield f"{node}.{key}: described, but nothing accepts it"
        elif times > 1:
            yield f"{node}.{key}: described {times} times"
    for section in sections:
        options = schema.get(section.node, {})
        if section.grouped and any(option.status != "read" for option in options.values()):
            own = [key for row in section.rows if row.same_as is None for key in row.keys if key in options]
            yield from (
                f"{section.node}.{key}: described as without effect" for key in own if options[key].status == "read"
            )
    for node, row in rows:
        for key in row.keys:
            if key in schema.get(node, {}):
                yield from _row_problems(f"{node}.{key}", key, row, schema[node][key], schema)


def _row_problems(dotted: str, key: str, row: Row, option: Option, schema: Schema) -> Iterator[str]:
    if row.type is not None and option.type is not None:
        yield f"{dotted}: has a type in the description, but the code says {option.type}"
    if row.default is not None and str(row.default["code"]) != option.default:
        code = str(row.default["code"])
        yield f"{dotted}: its default is described for {code!r}, but the code says {option.default!r}"
    if row.same_as is not None and option != schema[row.same_as].get(key):
        yield f"{dotted}: is not the same as {row.same_as}.{key}"
