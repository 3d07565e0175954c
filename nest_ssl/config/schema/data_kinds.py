"""Kinds of values that only data sets have: paths, boundaries of buckets, channels, seeds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nest_ssl.config.schema.kinds import MAPPING, TEXT, Kind, is_number


def split_paths(value: str | Sequence) -> list[str]:
    """Flatten a configuration value: one path, several separated by commas, or (nested) lists of those."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [path for part in value for path in split_paths(part)]


def paths_of(what: str) -> Kind:
    """Names of files: one, several in a string separated by commas, or (nested) lists of those."""
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
