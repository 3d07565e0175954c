"""A folder of features: one complete file per utterance, the settings that produced them, and an index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nest_ssl.apps.features.utterances import NamedUtterance
from nest_ssl.atomic import atomic_write
from nest_ssl.errors import NestError
from nest_ssl.folder_lock import LOCK
from nest_ssl.regular_file import open_regular

Format = Literal["npy", "safetensors"]
Dtype = Literal["float32", "float16"]
SETTINGS, INDEX = "settings.json", "index.jsonl"
_TENSOR = "features"
_BYTES_AT_ONCE = 2**22


@dataclass(frozen=True)
class Store:
    """A folder of features in one format."""

    folder: Path
    format: Format = "npy"
    dtype: Dtype = "float32"

    def root(self, folder: str) -> str:
        """Return the folder that names are relative to: an earlier run's if it contains this one."""
        earlier = str(self._settings().get("root") or "")
        return earlier if earlier and Path(folder).is_relative_to(earlier) else folder

    def open(self, settings: Mapping[str, Any]) -> None:
        """Start a folder or continue one with the same settings; refuse a folder with anything else."""
        found = self._settings()
        for name, value in settings.items() if found else ():
            if found.get(name) != value:
                was = f"{name} was {found.get(name)!r} and is {value!r} now"
                raise NestError(f"{self.folder}: made with other settings: {was}; give a new folder with --output")
        if not found:
            if self.folder.exists() and any(path.name != LOCK for path in self.folder.iterdir()):
                raise NestError(f"{self.folder}: holds other files; give a new folder with --output")
            with atomic_write(self.folder / SETTINGS) as temporary:
                temporary.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    def _settings(self) -> dict[str, Any]:
        """Return the settings of the run that made this folder; nothing if there was none."""
        file = self.folder / SETTINGS
        if not file.is_file():
            return {}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            raise NestError(f"{file}: is damaged; give a new folder with --output")
        return found

    def path(self, utterance: NamedUtterance) -> Path:
        return self.folder / f"{utterance.name}.{self.format}"

    def write(self, utterance: NamedUtterance, features: np.ndarray) -> None:
        features = features.astype(self.dtype, copy=False)
        with atomic_write(self.path(utterance)) as temporary:
            if self.format == "npy":
                with temporary.open("wb") as file:
                    np.save(file, features)
            else:
                from safetensors.numpy import save_file

                save_file({_TENSOR: np.ascontiguousarray(features)}, temporary)

    def shape(self, utterance: NamedUtterance) -> tuple[int, ...]:
        """Return the shape of existing features, from the header of their file."""
        path = self.path(utterance)
        if self.format == "npy":
            return np.load(path, mmap_mode="r").shape
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            return tuple(file.get_slice(_TENSOR).get_shape())

    def finished(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes, by name, of the features of an earlier complete run whose files still exist."""
        index = self.folder / INDEX
        try:
            lines = index.read_text(encoding="utf-8").splitlines() if index.is_file() else []
            found = [json.loads(line) for line in lines]
            return {line["id"]: tuple(line["shape"]) for line in found if (self.folder / line["file"]).is_file()}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NestError(f"{index}: is damaged; give a new folder with --output") from error

    def write_index(self, lines: Iterable[Mapping[str, Any]]) -> Path:
        index = self.folder / INDEX
        with atomic_write(index) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return index


def file_fingerprint(path: Path) -> str:
    """Return a checksum of a file, to notice another model under the same name."""
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(path) as file:
        while block := file.read(_BYTES_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()
