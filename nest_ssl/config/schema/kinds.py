"""Kinds of values. A kind checks a value, and gives its own description for errors, tables and JSON Schema."""

from __future__ import annotations

import math
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
    """A whole number; true and false are not numbers."""
    if at_least is None:
        return Kind(lambda value: type(value) is int, "a whole number", "int", {"type": "integer"})
    return Kind(
        lambda value: type(value) is int and value >= at_least,
        f"a whole number >= {at_least}",
        "int",
        {"type": "integer", "minimum": at_least},
    )


def number(above: float | None = None, infinite: bool = False) -> Kind:
    """A number; with a bound it must be finite, unless `infinite`."""
    if above is None:
        return Kind(is_number, "a number", "float", {"type": "number"})
    return Kind(
        lambda value: is_number(value) and value > above and (infinite or value < math.inf),
        "a finite number" if above == -math.inf else f"a number > {above:g}",
        "float",
        {"type": "number"} if above == -math.inf else {"type": "number", "exclusiveMinimum": above},
    )


def choice(choices: Iterable[Any]) -> Kind:
    """One of the values of a `Literal`."""
    values = tuple(choices)
    names = list(dict.fromkeys(map(str, values)))
    expected = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    return Kind(lambda value: value in values, expected, " | ".join(names), {"enum": list(values)}, names)


def either(kinds: Sequence[Kind]) -> Kind:
    """A value of any of the kinds."""
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
