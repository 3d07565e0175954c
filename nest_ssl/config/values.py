"""Values of a configuration against the types that a class or function declares for them."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from nest_ssl.errors import ConfigError

_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}


def check_types(config: Mapping[str, Any], hints: Mapping[str, Any], key: str) -> None:
    """Refuse a value that its declared type does not allow; types beyond YAML's plain values are not judged."""
    for name, value in config.items():
        if typing.get_origin(hints.get(name)) is typing.Literal:
            choices = typing.get_args(hints[name])
            if value not in choices:
                raise ConfigError(f"{key}.{name}: {value!r}; expected {' or '.join(map(repr, choices))}")
        allowed = _plain_types(hints.get(name))
        if allowed and not _fits(value, allowed):
            expected = " or ".join(_NAMES[kind] for kind in allowed if kind is not types.NoneType)
            raise ConfigError(f"{key}.{name}: {value!r}; expected {expected}")


def _plain_types(hint: Any) -> tuple[type, ...]:
    """`int | None` -> (int, NoneType); nothing for a hint that names any other type."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(members) if all(member in _NAMES for member in members) else ()


def _fits(value: Any, allowed: tuple[type, ...]) -> bool:
    kind = type(value)
    return kind in allowed or (kind is int and float in allowed)
