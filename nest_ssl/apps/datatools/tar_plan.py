"""Plan which utterance goes into which tar file, and under which name, before anything is written."""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nest_ssl.apps.datatools.manifest_files import read_entries
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.paths import resolve_path
from nest_ssl.data.tarred.members import file_id
from nest_ssl.errors import ManifestError, NestError

SHARDED_MANIFESTS = "sharded_manifests"
# not allowed in member names: WebDataset ends a name at its first dot
_NOT_IN_NAMES = re.compile(r"[/\\:.]")
_ABOUT_THE_FILE = ("audio_filepath", "audio_filename", "duration", "offset", "source_audio_offset", "shard_id")


@dataclass(frozen=True)
class TarOptions:
    """The options of a tarred set, under the names of NeMo's `metadata.yaml`."""

    num_shards: int
    shuffle: bool = False
    shuffle_seed: int | None = None
    min_duration: Seconds | None = None
    max_duration: Seconds | None = None
    sort_in_shards: bool = False


@dataclass(frozen=True)
class Utterance:
    """One manifest line, and its place in a tar file once it is planned."""

    row: dict[str, Any]
    path: str
    duration: Seconds | None
    offset: Seconds
    line: str  # manifest:line
    name: str = ""  # of the member, without a suffix
    shard: int = 0

    @property
    def source(self) -> str:
        """The audio file."""
        return resolve_path(self.path, os.path.dirname(self.line))  # noqa: PTH120

    def new_row(self, suffix: str, seconds: Seconds) -> dict[str, Any]:
        """Return its line in the new manifest: NeMo's fields, and the other fields of the old line."""
        row = {name: value for name, value in self.row.items() if name not in _ABOUT_THE_FILE}
        duration = seconds if self.duration is None else self.duration
        row = {"audio_filepath": f"{self.name}.{suffix}", "duration": duration, **row, "shard_id": self.shard}
        return row | ({"source_audio_offset": self.offset} if self.offset else {})

    def has_row(self, row: Any) -> bool:
        """Return whether this is its line in the new manifest, without checking its audio."""
        if not isinstance(row, dict) or type(row.get("duration")) not in (int, float):
            return False
        name = str(row.get("audio_filepath"))
        return file_id(name) == self.name and self.new_row(name.rpartition(".")[2], row["duration"]) == row


@dataclass(frozen=True)
class Shard:
    """One tar file to make, with its own manifest."""

    number: int
    folder: Path
    utterances: list[Utterance]

    @property
    def tar(self) -> Path:
        return self.folder / f"audio_{self.number}.tar"

    @property
    def manifest(self) -> Path:
        return self.folder / SHARDED_MANIFESTS / f"manifest_{self.number}.json"


def read_utterances(manifest: Path, options: TarOptions) -> list[Utterance]:
    """Return the utterances within the duration limits; as in training, those without a duration are kept."""
    low, high = options.min_duration or 0, options.max_duration or float("inf")
    every = _utterances(resolve_path(str(manifest)))
    kept = [one for one in every if one.duration is None or low <= one.duration <= high]
    if not kept:
        raise ManifestError(f"{manifest}: has no utterance from {low:g} to {high:g} s")
    return kept


def _utterances(file: str) -> Iterator[Utterance]:
    for number, row, fields in read_entries(file):
        if not isinstance(row.get("audio_filename", row.get("audio_filepath")), str):
            raise ManifestError(f"{file}:{number}: names several files for one signal, which a tar file cannot hold")
        duration = None if math.isnan(fields.duration) else fields.duration
        offset = 0.0 if math.isnan(fields.offset) else fields.offset
        yield Utterance(row, fields.path, duration, offset, f"{file}:{number}")


def in_buckets(utterances: Sequence[Utterance], options: TarOptions, buckets: int) -> list[list[Utterance]]:
    """Split by duration into ranges of equal width, as NeMo does."""
    missing = next((utterance.line for utterance in utterances if utterance.duration is None), None)
    if missing is not None:
        raise ManifestError(f"{missing}: has no duration, which buckets need")
    durations = [utterance.duration or 0 for utterance in utterances]
    shortest = min(durations) if options.min_duration is None else options.min_duration
    longest = max(durations) if options.max_duration is None else options.max_duration
    width = (longest - shortest) / buckets
    filled: list[list[Utterance]] = [[] for _ in range(buckets)]
    for utterance, duration in zip(utterances, durations, strict=True):
        filled[min(buckets - 1, int((duration - shortest) / width) if width > 0 else 0)].append(utterance)
    for number, bucket in enumerate(filled):
        if not bucket:
            low, high = shortest + number * width, shortest + (number + 1) * width
            raise NestError(f"buckets: is {buckets}, but nothing is from {low:g} to {high:g} s long; use fewer buckets")
    return filled


def plan_shards(utterances: Sequence[Utterance], folder: Path, options: TarOptions) -> Iterator[Shard]:
    """Yield shards with the same number of utterances: in NeMo, ranks wait forever for one whose shards have fewer."""
    utterances = list(utterances)
    each = len(utterances) // options.num_shards
    if each == 0:
        raise NestError(
            f"shards: is {options.num_shards}, but there are {len(utterances)} utterances; use fewer shards"
        )
    if options.shuffle:
        random.Random(options.shuffle_seed).shuffle(utterances)
    used: dict[str, int] = {}
    for number in range(options.num_shards):
        own = utterances[number * each : (number + 1) * each]
        if options.sort_in_shards:
            own.sort(key=lambda utterance: utterance.duration or 0)
        yield Shard(number, folder, [replace(one, name=_unused_name(one, used), shard=number) for one in own])


def _unused_name(utterance: Utterance, used: dict[str, int]) -> str:
    """Return the path as one word, with a number if that name is taken."""
    stem = os.path.splitext(utterance.path)[0]  # noqa: PTH122
    name = _NOT_IN_NAMES.sub("_", stem).replace("-sub", "_sub").strip("_") or "audio"  # `-sub` has a meaning in NeMo
    while True:
        used[name] = used.get(name, 0) + 1
        if used[name] == 1:
            return name
        name = f"{name}-part{used[name]}"
