"""List the settings that differ between two recordings: seed, data, configuration, precision, device, threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from nest_ssl.apps.alignment.nemo_side import MANIFESTS

_OF_THE_RUN = ("seed", "precision", "device", "accumulate_grad_batches")
_OF_THE_MACHINE = ("torch", "threads")
_WITHOUT_EFFECT = ("pin_memory", "target", "nemo_version")


@dataclass(frozen=True)
class SettingPair:
    """A setting that differs between the two runs; None if a run does not have it."""

    key: str
    nemo: Any
    ours: Any

    def __str__(self) -> str:
        theirs, mine = ("not set" if value is None else value for value in (self.nemo, self.ours))
        return f"{self.key}: NeMo {theirs}, ours {mine}"


def differing_settings(nemo: Mapping[str, Any], ours: Mapping[str, Any]) -> list[SettingPair]:
    """Return the settings that differ between the metadata of two recordings."""
    theirs, mine = dict(_settings(nemo)), dict(_settings(ours))
    pairs = (SettingPair(key, theirs.get(key), mine.get(key)) for key in dict.fromkeys([*theirs, *mine]))
    return [pair for pair in pairs if pair.nemo != pair.ours]


def _settings(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    versions = metadata.get("versions", {})
    for side, names in ((metadata, _OF_THE_RUN), (versions, _OF_THE_MACHINE)):
        yield from ((name, side[name]) for name in names if side.get(name) is not None)
    yield from _flattened(metadata.get("config"), "model")


def _flattened(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield values by dotted key; of classes and files only the name counts, not the module or folder."""
    name = key.rpartition(".")[2]
    if name in _WITHOUT_EFFECT or node is None:
        return
    if isinstance(node, Mapping):
        for child, value in node.items():
            yield from _flattened(value, f"{key}.{child}")
    elif name == "_target_":
        yield key, str(node).rpartition(".")[2]
    elif name in MANIFESTS:
        yield key, ", ".join(PurePath(str(path)).name for path in (node if isinstance(node, list) else [node]))
    else:
        yield key, node
