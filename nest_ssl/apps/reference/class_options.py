"""Options of classes: type and default of each argument, as a configuration writes them."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

import yaml
from torch import Tensor

REQUIRED = "required"
_ONLY_FOR_CHECKERS = {"Callable": collections.abc.Callable}  # names that torch imports where nothing runs
_NAMES = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str"}


@dataclass(frozen=True)
class Option:
    """Type and default, as YAML writes them; no type where the code declares none."""

    type: str | None = None
    default: str = "null"
    status: Literal["read", "idle", "refused"] = "read"
    json: Mapping[str, Any] | None = field(default=None, compare=False)  # JSON Schema, if it says more than the type


def of_class(cls: type) -> dict[str, Option]:
    """Return the arguments of a class."""
    return of_parameters(inspect.signature(cls).parameters, argument_types(cls))


def of_parameters(parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]) -> dict[str, Option]:
    """Return the options of these arguments and their declared types."""
    return {
        name: Option(
            type_text(hints.get(name)), REQUIRED if parameter.default is parameter.empty else as_yaml(parameter.default)
        )
        for name, parameter in parameters.items()
    }


def of_dataclass(cls: type) -> dict[str, Option]:
    """Return the fields of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {
        field.name: Option(type_text(hints[field.name]), _field_default(field)) for field in dataclasses.fields(cls)
    }


def argument_types(cls: type) -> dict[str, Any]:
    """Return the declared types of the arguments of a class and of its base classes."""
    types_of: dict[str, Any] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(object)]):
        types_of |= typing.get_type_hints(base.__init__, localns=_ONLY_FOR_CHECKERS)  # type: ignore[misc]
    return types_of


def united(owners: Mapping[str, Mapping[str, Option]]) -> dict[str, Option]:
    """Merge the options of several classes; a default that only some of them have carries their names."""
    options: dict[str, Option] = {}
    for name in dict.fromkeys(name for own in owners.values() for name in own):
        takers = {owner: own[name] for owner, own in owners.items() if name in own}
        kinds = [kind for option in takers.values() for kind in (option.type or "").split(" | ") if kind]
        options[name] = Option(" | ".join(dict.fromkeys(kinds)) or None, _common_first(takers))
    return options


def as_yaml(value: Any) -> str:
    """Return a value as a configuration writes it, on one line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
        return "{}"
    if value == math.inf:
        return ".inf"
    return f'"{value}"' if isinstance(value, str) and not _is_plain(value) else str(value)


def _is_plain(text: str) -> bool:
    """Return whether YAML reads the text unchanged without quotes."""
    try:
        return yaml.safe_load(text) == text
    except yaml.YAMLError:
        return False


def same_value(one: str, other: str) -> bool:
    """Return whether two texts are the same value: `0` is `0.0`."""
    return _number(one) == _number(other)


def type_text(hint: Any) -> str | None:
    """Return `int | null` or the values of a choice; None for a type that a configuration cannot write."""
    names = list(dict.fromkeys(_type_names(hint)))
    if not names or "any" in names:
        return None
    return " | ".join([name for name in names if name != "null"] + [name for name in names if name == "null"])


def choices_text(choices: Iterable[Any], optional: bool = False) -> str:
    """Return the values that a key can have."""
    return " | ".join([*map(as_yaml, choices), *(["null"] if optional else [])])


def _type_names(hint: Any) -> Iterable[str]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _type_names(member)
    elif origin is Literal:
        yield from map(as_yaml, typing.get_args(hint))
    elif hint in _NAMES:
        yield _NAMES[hint]
    elif hint is Tensor:  # torch takes a learning rate as one too; a configuration cannot
        return
    elif isinstance(origin or hint, type):
        yield _class_name(origin or hint)
    else:
        yield "any"


def _class_name(cls: type) -> str:
    if issubclass(cls, PurePath):
        return "str"
    if dataclasses.is_dataclass(cls) or issubclass(cls, collections.abc.Mapping):
        return "mapping"
    return "list" if issubclass(cls, collections.abc.Sequence) else "any"


def _field_default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return as_yaml(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return as_yaml(field.default_factory())
    return REQUIRED


def _common_first(takers: Mapping[str, Option]) -> str:
    """Return `0; adamw: 0.01`: the default that most have, then the others with names."""
    of_default: dict[str, list[str]] = {}
    for owner, option in takers.items():
        same = next((known for known in of_default if same_value(known, option.default)), option.default)
        of_default.setdefault(same, []).append(owner)
    common = max(of_default, key=lambda default: len(of_default[default]))
    if len(of_default) > 1 and len(of_default[common]) == 1:
        common = ""
    others = [f"{', '.join(names)}: {default}" for default, names in of_default.items() if default != common]
    return "; ".join([common, *others] if common else others)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
