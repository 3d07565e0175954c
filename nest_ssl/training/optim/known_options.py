"""Options of an optimizer or a scheduler as a configuration writes them, checked and typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nest_ssl.errors import refuse_unknown


def read_options(config: Mapping[str, Any], known: Iterable[str], owner: str, key: str) -> dict[str, Any]:
    """The options under `key`, typed as Python wants them; one that `owner` does not take is refused by name."""
    refuse_unknown(config, known, key, owner)
    return {name: _typed(value) for name, value in config.items()}


def _typed(value: Any) -> Any:
    """`1e-3` is a string to YAML 1.1 (not to OmegaConf) and to quoted overrides; pairs come as lists."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    if isinstance(value, Sequence):
        return tuple(_typed(item) for item in value)
    return value
