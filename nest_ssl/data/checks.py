"""Values of a configuration node, checked where they are taken out; every error names the full key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nest_ssl.data.paths import split_paths
from nest_ssl.errors import ConfigError, nearest

REQUIRED = object()


@dataclass(frozen=True)
class CheckedNode:
    """A plain, resolved node and its dotted name; what is absent or null takes the default, where there is one."""

    config: Mapping[str, Any]
    key: str

    @property
    def trains(self) -> bool:
        """Whether it is the data of the training, and not of a validation."""
        return self.key.endswith("train_ds")

    def wrong(self, name: str, expected: str) -> ConfigError:
        """The error for an option that is not what was expected."""
        value = self.config.get(name)
        found = "is missing" if value is None else f"is {value!r}"
        return ConfigError(f"{self.key}.{name}: {found}; expected {expected}")

    def whole(self, name: str, least: int, default: Any = REQUIRED) -> Any:
        """A whole number of at least `least`."""
        value = self.config.get(name)
        if value is None and default is not REQUIRED:
            return default
        if type(value) is not int or value < least:
            raise self.wrong(name, f"a whole number >= {least}")
        return value

    def number(self, name: str, default: float | None, above: float = 0.0) -> Any:
        """A finite number greater than `above`."""
        value = self.config.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not above < value < math.inf:
            raise self.wrong(name, f"a number > {above:g}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.config.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def choice(self, name: str, options: Sequence[str], default: str | None) -> Any:
        """One of the options."""
        value = self.config.get(name)
        if value is None:
            return default
        if value not in options:
            raise self.wrong(name, f"one of {', '.join(options)}{nearest(str(value), options)}")
        return value

    def bins(self, name: str) -> list[float] | None:
        """Ascending seconds, the edges of buckets."""
        value = self.config.get(name)
        if value is None:
            return None
        numbers = isinstance(value, (list, tuple)) and all(type(edge) in (int, float) and edge > 0 for edge in value)
        if not numbers or not value or sorted(set(value)) != list(value):
            raise self.wrong(name, "seconds > 0 in ascending order")
        return list(value)

    def paths(self, name: str, kind: str = "a JSON-lines manifest") -> list[str]:
        """One path or more: a string, several in a string separated by commas, or a list."""
        value = self.config.get(name)
        paths = split_paths(value) if value is not None and _is_path_list(value) else []
        if not paths or "???" in paths:
            raise self.wrong(name, f"the path of {kind}, or a list of paths")
        return paths


def _is_path_list(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and all(map(_is_path_list, value)))
