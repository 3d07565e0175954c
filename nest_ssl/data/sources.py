"""Which files of speech a `*_ds` node of the configuration names, before any of them is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nest_ssl.data.paths import split_paths

_SOURCES = ("manifest_filepath", "cuts_path", "shar_path")


def sources(node: Mapping[str, Any] | None) -> list[str]:
    """Manifests, cut sets and Shar folders of a plain node; none if it has no data."""
    given = [(node or {}).get(name) for name in _SOURCES]
    return [path for text in _texts(given) for path in split_paths(text)]


def _texts(value: Any) -> Iterator[str]:
    """Lists may hold weights beside paths, and mappings name a path for each field."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
