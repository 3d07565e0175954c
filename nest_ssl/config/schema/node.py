"""How the keys of a node are declared, each as a field of a dataclass, and how a configuration is read into it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, TypeVar

from nest_ssl.config.schema.kinds import MAPPING, TEXT, Kind, allows_null, kind_of
from nest_ssl.errors import ConfigError, nearest, refuse_unknown

AnyNode = TypeVar("AnyNode", bound="Node")
_OFF: tuple[Any, ...] = (None, False, "", [], {})


@dataclass(frozen=True)
class RefusedKey:
    """A key of NeMo that is not supported: an error gives the `reason`, or what to use instead."""

    reason: str = "leave it out"
    off: tuple[Any, ...] = _OFF  # accepted: with these values NeMo does nothing either


@dataclass(frozen=True)
class Setting:
    """One key of a node."""

    name: str
    kind: Kind
    null: bool  # null is a value; of other keys it stands for the default
    default: Any  # MISSING: the key is required
    below: type[Node] | None = None  # the node that the key holds


@dataclass(frozen=True)
class Node:
    """A node of the configuration: a subclass declares each key as a field, and lists the keys without effect.

    If a subclass has a field `node`, `read` stores the node's dotted name there, for errors about several keys.
    """

    IDLE: ClassVar[tuple[str, ...]] = ()  # keys of NeMo that are accepted, without effect
    REFUSED: ClassVar[Mapping[str, RefusedKey]] = {}
    WITH: ClassVar[str] = ""  # in errors: where these keys apply


def setting(
    default: Any = MISSING,
    *,
    factory: Callable[[], Any] | None = None,
    kind: Kind | None = None,
    at_least: int | None = None,
    above: float | None = None,
) -> Any:
    """Declare a key: its default (without one it is required), and the bounds or kind that its type does not state."""
    metadata = {"kind": kind, "at_least": at_least, "above": above}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def settings_of(cls: type[Node]) -> dict[str, Setting]:
    """Return the keys of a node that have an effect."""
    hints = typing.get_type_hints(cls)
    return {field.name: _setting(field, hints[field.name]) for field in dataclasses.fields(cls) if field.name != "node"}


def keys_of(cls: type[Node]) -> list[str]:
    """Return every key that a node accepts or refuses by name, also those without effect."""
    return [*settings_of(cls), *cls.IDLE, *(name for name in cls.REFUSED if "." not in name)]


def read(cls: type[AnyNode], config: Mapping[str, Any], node: str) -> AnyNode:
    """Read the node with this dotted name; refuse an unknown key and a value that its key cannot have."""
    refuse_unknown(config, keys_of(cls), node, more=cls.WITH)
    for name, refused in cls.REFUSED.items():
        value = _lookup(config, name)
        if not any(value is off or value == off for off in refused.off):
            raise ConfigError(f"{dotted(node, name)}: is {value!r}, which is not supported{cls.WITH}; {refused.reason}")
    values = {name: _value(key, config, node) for name, key in settings_of(cls).items()}
    return cls(**values, **({"node": node} if "node" in cls.__dataclass_fields__ else {}))


def read_value(cls: type[Node], config: Mapping[str, Any], name: str, node: str) -> Any:
    """Read a single key, whatever the others are."""
    return _value(settings_of(cls)[name], config, node)


def check_values(config: Mapping[str, Any], hints: Mapping[str, Any], node: str) -> None:
    """Refuse a value that the type of its argument does not allow; types that YAML cannot write are not checked."""
    for name, value in config.items():
        kind = kind_of(hints.get(name))
        if kind is None or (value is None and allows_null(hints[name])):
            continue
        if value is None or not kind.accepts(value):
            raise wrong_value(node, name, value, kind)


def wrong_value(node: str, name: str, value: Any, kind: Kind) -> ConfigError:
    """Return the error for a value that its key cannot have."""
    suggestion = nearest(str(value), kind.choices) if kind.choices else ""
    return wrong(node, name, value, f"{kind.expected}{suggestion}")


def wrong(node: str, name: str, value: Any, expected: str) -> ConfigError:
    """Return the error for a value that is missing or is not what was expected."""
    found = "is missing" if value is None else f"is {value!r}"
    return ConfigError(f"{dotted(node, name)}: {found}; expected {expected}")


def dotted(node: str, name: str) -> str:
    """Return the full name of a key; the top level of a configuration has no name."""
    return f"{node}.{name}" if node else name


def _setting(field: dataclasses.Field[Any], hint: Any) -> Setting:
    below = hint if isinstance(hint, type) and issubclass(hint, Node) else None
    kind = field.metadata.get("kind") or kind_of(
        hint, at_least=field.metadata.get("at_least"), above=field.metadata.get("above")
    )
    default = field.default if field.default_factory is MISSING else field.default_factory
    if below is None and kind is None:
        raise TypeError(f"{field.name}: its type says no kind of value; give setting(kind=...)")
    return Setting(field.name, kind or MAPPING, allows_null(hint) or default is None, default, below)


def _value(key: Setting, config: Mapping[str, Any], node: str) -> Any:
    value = config.get(key.name)
    if key.below is not None and (value is None or isinstance(value, Mapping)):
        return read(key.below, value or {}, dotted(node, key.name))
    if value is None and key.null and key.name in config:
        return None
    if value is None and key.default is not MISSING:
        return key.default() if callable(key.default) else key.default
    if key.kind is TEXT and key.null and type(value) in (int, float):
        return str(value)  # a name or version that looks like a number
    if not key.kind.accepts(value):
        raise wrong_value(node, key.name, value, key.kind)
    return value


def _lookup(config: Mapping[str, Any], dotted_name: str) -> Any:
    value: Any = config
    for name in dotted_name.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
