"""Read what keys mean, in both languages, from `config/schema/words/*.yaml`, and check it against the schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from nest_ssl.apps.reference.class_options import Option
from nest_ssl.apps.reference.nodes import TRAINER, Schema
from nest_ssl.config import schema as schema_package
from nest_ssl.errors import NestError

FOLDER = Path(schema_package.__file__).parent / "words"
FILES = ("run", "model", "data", "optim", "experiment")  # the order of the pages
_SECTION_KEYS = {"node", "title", "sub", "en", "zh", "keys", "groups"}
_ROW_KEYS = {"keys", "en", "zh", "nemo", "type", "default", "same_as"}

Language = Literal["en", "zh"]
Words = Mapping[Language, str]


@dataclass(frozen=True)
class Row:
    """One key, or several that share a sentence; `type` and `default` are set only if the code does not declare them.

    `code` is what the code says of the default that the words are for: they are looked at again when it changes.
    """

    keys: tuple[str, ...]
    meaning: Words
    nemo: Words | None = None  # how it differs
    type: str | None = None
    default: Words | None = None
    code: str | None = None
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


def read_sections(folder: Path = FOLDER) -> list[ReferenceSection]:
    """Return all sections in the order of the pages."""
    return [
        _section(entry, f"{name}.yaml")
        for name in FILES
        for entry in yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    ]


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
    if row.code is not None and row.code != option.default:
        yield f"{dotted}: its default is described for {row.code!r}, but the code says {option.default!r}"
    if row.same_as is not None and option != schema[row.same_as].get(key):
        yield f"{dotted}: is not the same as {row.same_as}.{key}"


def _section(entry: dict[str, Any], file: str) -> ReferenceSection:
    where = f"{file}: {entry.get('node')}"
    _refuse_unknown(entry, _SECTION_KEYS, where)
    rows = [
        *(_row({"keys": [key], **row}, f"{where}.{key}") for key, row in entry.get("keys", {}).items()),
        *(_row(row, f"{where}.{row['keys'][0]}") for row in entry.get("groups", [])),
    ]
    return ReferenceSection(
        node=entry["node"],
        title=_nested(entry, "title", where),
        intro=_words(entry, where) if "en" in entry or "zh" in entry else None,
        rows=tuple(rows),
        grouped="groups" in entry,
        sub=entry.get("sub", False),
    )


def _row(entry: dict[str, Any], where: str) -> Row:
    _refuse_unknown(entry, _ROW_KEYS, where)
    default = entry.get("default")
    return Row(
        keys=tuple(entry["keys"]),
        meaning=_words(entry, where),
        nemo=_nested(entry, "nemo", where) if "nemo" in entry else None,
        type=entry.get("type"),
        default=None if default is None else _nested(entry, "default", where, also=["code"]),
        code=None if default is None else str(default["code"]),
        same_as=entry.get("same_as"),
    )


def _nested(entry: Mapping[str, Any], name: str, where: str, also: Iterable[str] = ()) -> Words:
    _refuse_unknown(entry[name], {"en", "zh", *also}, f"{where}.{name}")
    return _words(entry[name], f"{where}.{name}")


def _words(entry: Mapping[str, Any], where: str) -> Words:
    if not all(isinstance(entry.get(language), str) and entry[language].strip() for language in ("en", "zh")):
        raise NestError(f"{where}: needs words in English (en) and Chinese (zh)")
    return {"en": entry["en"], "zh": entry["zh"]}


def _refuse_unknown(entry: Mapping[str, Any], known: set[str], where: str) -> None:
    for name in entry.keys() - known:
        raise NestError(f"{where}: has {name!r}; expected {', '.join(sorted(known))}")
