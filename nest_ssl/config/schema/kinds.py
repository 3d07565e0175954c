"""Kinds of values. A kind checks a value, and gives its own description for errors, tables and JSON Schema."""

from __future__ import annotations

import math
import multiprocessing
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """The values that a key can have, besides null."""

    accepts: Callable[[Any], bool]
    expected: str  # in errors: "a whole number >= 1"
    name: str  # in tables: "int"
    json: Mapping[str, Any] = field(default_factory=dict)  # JSON Schema
    choices: Sequence[str] = ()  # from which an error suggests the nearest


def whole(at_least: int | None = None) -> Kind:
    """Return the kind of whole numbers; true and false are not numbers."""
    bound, json = ("", {}) if at_least is None else (f" >= {at_least}", {"minimum": at_least})
    return Kind(
        lambda value: type(value) is int and (at_least is None or value >= at_least),
        f"a whole number{bound}",
        "int",
        {"type": "integer", **json},
    )


def number(above: float | None = None, infinite: bool = False) -> Kind:
    """Return the kind of numbers; with a bound they must be finite, unless `infinite`."""
    if above is None:
        return Kind(is_number, "a number", "float", {"type": "number"})
    return Kind(
        lambda value: is_number(value) and value > above and (infinite or value < math.inf),
        "a finite number" if above == -math.inf else f"a number > {above:g}",
        "float",
        {"type": "number"} if above == -math.inf else {"type": "number", "exclusiveMinimum": above},
    )


def choice(choices: Iterable[Any]) -> Kind:
    """Return the kind of the values of a `Literal`."""
    values = tuple(choices)
    names = list(dict.fromkeys(map(str, values)))
    expected = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    return Kind(lambda value: value in values, expected, " | ".join(names), {"enum": list(values)}, names)


def either(kinds: Sequence[Kind]) -> Kind:
    """Return the kind of values that any of the kinds accepts."""
    return Kind(
        lambda value: any(kind.accepts(value) for kind in kinds),
        " or ".join(kind.expected for kind in kinds),
        " | ".join(kind.name for kind in kinds),
        {"anyOf": [kind.json for kind in kinds]},
        [name for kind in kinds for name in kind.choices],
    )


FLAG = Kind(lambda value: type(value) is bool, "true or false", "bool", {"type": "boolean"})
TEXT = Kind(lambda value: isinstance(value, str), "text", "str", {"type": "string"})
MAPPING = Kind(lambda value: isinstance(value, Mapping), "keys below it", "mapping", {"type": "object"})
LIST = Kind(lambda value: isinstance(value, (list, tuple)), "a list", "list", {"type": "array"})
NAME_PARTS = Kind(
    lambda value: LIST.accepts(value) and all(map(TEXT.accepts, value)),
    "a list of parts of tensor names",
    "list",
    {"type": "array", "items": {"type": "string"}},
)


def kind_of(hint: Any, at_least: int | None = None, above: float | None = None) -> Kind | None:
    """Return the kind of a type, without null; None for types other than plain values and choices of them."""
    if _choices(hint):
        return choice(_choices(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not types.NoneType]
        choices = [value for member in members for value in _choices(member)]
        kinds = [kind_of(member, at_least, above) for member in members if not _choices(member)]
        known = [kind for kind in kinds if kind is not None] + ([choice(choices)] if choices else [])
        return None if None in kinds else known[0] if len(known) == 1 else either(known)
    return {int: whole(at_least), float: number(above), bool: FLAG, str: TEXT}.get(hint)


def _choices(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def allows_null(hint: Any) -> bool:
    """Return whether null is a value of the type."""
    return hint is types.NoneType or types.NoneType in typing.get_args(hint)


def is_number(value: Any) -> bool:
    """Return whether a value is a number; true and false are not."""
    return type(value) in (int, float)


# Kinds that only data sets have: paths, boundaries of buckets, channels, seeds


def split_paths(value: str | Sequence) -> list[str]:
    """Flatten a configuration value: one path, several separated by commas, or (nested) lists of those."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [path for part in value for path in split_paths(part)]


def paths_of(what: str) -> Kind:
    """Return the kind of names of files: one, several separated by commas, or (nested) lists of those."""
    return Kind(_names_files, f"the path of {what}, or a list of paths", "str | list", {"type": ["string", "array"]})


def _numbers(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(is_number(item) and fits(item) for item in value)


def _is_single(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1


def _names_files(value: Any) -> bool:
    return _is_path_list(value) and bool(split_paths(value)) and "???" not in split_paths(value)


def _is_path_list(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and all(map(_is_path_list, value)))


def _is_weighted(entry: Any) -> bool:
    """Return whether an entry is `path`, `[path]` or `[path, weight]`; null is no weight."""
    if isinstance(entry, (list, tuple)) and len(entry) in (1, 2):
        return _is_path(entry[0]) and (len(entry) == 1 or entry[1] is None or is_number(entry[1]))
    return _is_path(entry)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", "???")


def _has_cuts(fields: Mapping[str, Any]) -> bool:
    lists = (value if isinstance(value, (list, tuple)) else [value] for value in fields.values())
    return "cuts" in fields and all(isinstance(path, str) for paths in lists for path in paths)


AUGMENTOR = Kind(MAPPING.accepts, "a node with `_target_`, or null", "mapping", MAPPING.json)
MANIFESTS = paths_of("a JSON-lines manifest")
TAR_FILES = paths_of("a tar file")
CUT_SET = Kind(
    lambda value: isinstance(value, str), "the path of a lhotse cut set, such as cuts.jsonl.gz", "str", TEXT.json
)
EDGES = Kind(
    lambda value: _numbers(value, lambda edge: edge > 0) and len(value) > 0 and sorted(set(value)) == list(value),
    "seconds > 0 in ascending order",
    "list",
    {"type": "array", "minItems": 1, "items": {"type": "number", "exclusiveMinimum": 0}},
)
PROBABILITIES = Kind(
    lambda value: _numbers(value, lambda share: share >= 0),
    "numbers >= 0, one a manifest, whose sum is 1",
    "list",
    {"type": "array", "items": {"type": "number", "minimum": 0}},
)
COUNTS = Kind(
    lambda value: _numbers(value, lambda count: type(count) is int and count > 0),
    "whole numbers > 0, one for each bucket",
    "list",
    {"type": "array", "items": {"type": "integer", "minimum": 1}},
)
CHANNEL = Kind(
    lambda value: value == "average" or type(value[0] if _is_single(value) else value) is int,
    "a channel number from 0 on, `average`, or null for files of one channel",
    "int | average | list",
    {
        "anyOf": [
            {"type": "integer"},
            {"const": "average"},
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 1},
        ]
    },
)
SHARD_SEED = Kind(
    lambda value: value in ("randomized", "trng") or (type(value) is int and value >= 0),
    "a whole number >= 0, randomized or trng",
    "int | trng | randomized",
    {"anyOf": [{"type": "integer", "minimum": 0}, {"enum": ["trng", "randomized"]}]},
)
WEIGHTED_PATHS = Kind(
    lambda value: all(map(_is_weighted, value if isinstance(value, (list, tuple)) else [value])),
    "a path, or a list of paths or of [path, weight]",
    "str | list",
    {"type": ["string", "array"]},
)
SHAR = Kind(
    lambda value: _has_cuts(value) if isinstance(value, Mapping) else WEIGHTED_PATHS.accepts(value),
    "a folder, a list of folders or of [folder, weight], or fields of which one is `cuts`, each with its paths",
    "str | list | mapping",
    {"type": ["string", "array", "object"]},
)
START_METHOD = Kind(
    lambda value: value in multiprocessing.get_all_start_methods(),
    f"one of {', '.join(multiprocessing.get_all_start_methods())}",
    "fork | spawn | forkserver",  # some systems have fewer
    {"enum": ["fork", "spawn", "forkserver"]},
    multiprocessing.get_all_start_methods(),
)
