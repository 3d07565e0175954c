"""Fingerprints of data sets: does a resumed run have the same utterances, in the same order?

They are computed from the columns of manifests, eight bytes at a time for many lines at once: a million lines take a
fraction of a second. An utterance is identified by folder, file name, duration and offset, so that a moved corpus is
the same corpus; the whole paths are compared separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from nest_ssl.data.manifest import Manifest, datasets_in, each_once, line_of, manifests_in
from nest_ssl.data.paths import expand_paths, resolve_path, texts_in

_LINES_AT_ONCE = 2**16
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_START = np.uint64(0x243F6A8885A308D3)
_MASKS = np.array([2 ** (8 * count) - 1 for count in range(9)], dtype=np.uint64)  # the first bytes of a word
_SEPARATORS = (ord("/"), ord("\\"))
_LHOTSE_SOURCES = ("shar_path", "cuts_path", "manifest_filepath")  # the first one that is set is used
_PART_OF_FILE = 2**16  # bytes compared at its start and at its end


@dataclass(frozen=True)
class Fingerprint:
    """The content of a data set, as stored in a checkpoint; each digest depends on the order."""

    utterances: int  # after filtering
    paths: str  # of the paths as written in the manifests
    lines: str  # of folder, file name, duration and offset of each utterance
    lengths: str  # of durations and offsets alone
    files: dict[str, str] = field(default_factory=dict)  # read during training: name -> size and digest

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Any) -> Fingerprint | None:
        """Return the fingerprint of these values of a checkpoint; None if they are not one."""
        try:
            found = cls(**{name: values[name] for name in ("utterances", "paths", "lines", "lengths", "files")})
        except (KeyError, TypeError):
            return None
        texts = [found.paths, found.lines, found.lengths]
        texts += [text for item in found.files.items() for text in item] if isinstance(found.files, dict) else [None]
        is_one = type(found.utterances) is int and all(isinstance(text, str) for text in texts)
        return found if is_one else None


@dataclass(frozen=True)
class DataSet:
    """The manifests and lhotse files of one configuration key."""

    manifests: tuple[Manifest, ...]
    files: tuple[Path, ...] = ()

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(
            utterances=sum(map(len, self.manifests)),
            paths=_digest([column for one in self.manifests for column in one.path_bytes(0, len(one))]),
            lines=_digest([self.lines]),
            lengths=_digest([column for one in self.manifests for column in (one.durations, one.offsets)]),
            files={"/".join(path.parts[-2:]): _file_digest(path) for path in self.files},
        )

    @cached_property
    def lines(self) -> np.ndarray:
        """64 bits for each utterance, in order."""
        digests = [line_digests(manifest) for manifest in self.manifests]
        return np.concatenate(digests) if digests else np.empty(0, np.uint64)

    def path(self, index: int) -> str:
        """Return the path of an utterance as written in its manifest."""
        manifest, line = line_of(self.manifests, index)
        return manifest.path(line)


def data_sets(dataset: Any, node: Mapping[str, Any], key: str) -> dict[str, DataSet]:
    """Return the utterances and the noise of a loader's dataset, by their configuration key."""
    noise = each_once(one.noise_data for one in datasets_in(dataset))
    files = _lhotse_files(node) if node.get("use_lhotse") else ()
    return {
        f"{key}.manifest_filepath": DataSet(tuple(manifests_in(dataset)), files),
        f"{key}.noise_manifest": DataSet(tuple(noise)),
    }


def line_digests(manifest: Manifest) -> np.ndarray:
    """Return 64 bits for each entry: a hash of folder, file name, duration and offset."""
    found = np.empty(len(manifest), np.uint64)
    for first in range(0, len(manifest), _LINES_AT_ONCE):
        some = slice(first, first + _LINES_AT_ONCE)
        text, ends = manifest.path_bytes(first, some.stop)
        value = text_digests(text, name_starts(text, ends, 2), ends)
        for column in (manifest.durations, manifest.offsets):
            numbers = np.nan_to_num(column[some], nan=-1.0)
            value = _mixed(value ^ numbers.view(np.uint64))
        found[some] = value
    return found


def text_digests(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return 64 bits for each text from a start to an end: a hash of its bytes."""
    padded = np.zeros(len(text) + 8, np.uint8)
    padded[:-8] = text
    words = np.ndarray(len(text) + 1, np.dtype("<u8"), padded, strides=(1,))  # one from every byte on
    value = np.full(len(ends), _START, np.uint64)
    at, index = starts.copy(), np.arange(len(ends))
    while len(index):
        left = ends[index] - at[index]
        value[index] = _mixed(value[index] ^ (words[at[index]] & _MASKS[np.minimum(left, 8)]))
        at[index] += 8
        index = index[left > 8]
    return value


def name_starts(text: np.ndarray, ends: np.ndarray, components: int) -> np.ndarray:
    """Return where the last components of each path begin; 1: the file name, 2: its folder."""
    starts = np.concatenate(([0], ends[:-1]))
    separators = np.flatnonzero((text == _SEPARATORS[0]) | (text == _SEPARATORS[1]))
    if len(separators) < components:
        return starts
    before = np.searchsorted(separators, ends)
    start = np.where(before >= components, separators[np.maximum(before - components, 0)] + 1, 0)
    return np.maximum(starts, start)


def _mixed(value: np.ndarray) -> np.ndarray:
    value = value * _FACTOR  # modulo 2**64
    return value ^ (value >> np.uint64(29))


def _lhotse_files(node: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the manifests or cut sets that lhotse reads during training; of Shar, the files with cuts."""
    source = next((node[name] for name in _LHOTSE_SOURCES if node.get(name) is not None), None)
    found: list[Path] = []
    for text in texts_in(source.get("cuts") if isinstance(source, Mapping) else source):
        for name in expand_paths([text], "manifest_filepath"):
            path = Path(resolve_path(name))
            found.extend(sorted(path.glob("cuts.*")) if path.is_dir() else [path])
    return tuple(path for path in found if path.is_file())


def _file_digest(path: Path) -> str:
    """Return a digest of size, start and end of a file: cheap even for thousands of files."""
    with path.open("rb") as file:
        size = path.stat().st_size
        head = file.read(_PART_OF_FILE)
        file.seek(max(0, size - _PART_OF_FILE))
        return f"{size} {blake2b(head + file.read(_PART_OF_FILE), digest_size=8).hexdigest()}"


def _digest(columns: Sequence[np.ndarray]) -> str:
    total = blake2b(digest_size=16)
    for column in columns:
        total.update(np.ascontiguousarray(column).data)
    return total.hexdigest()
