"""Put the audio of a manifest into tar files, in NeMo's layout: `nest-ssl data tar`.

Which utterance goes into which tar file, and under which name, is planned before anything is written. One process makes
a shard, and reads it back and decodes it before it gets its final name; the same input gives the same bytes. So a shard
with its final name is complete, and an interrupted run continues with the missing ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import random
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nest_ssl.apps.datatools.manifest_files import read_entries
from nest_ssl.apps.datatools.processes import in_processes
from nest_ssl.apps.datatools.tar_audio import decode, pack
from nest_ssl.atomic import atomic_write
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.paths import resolve_path
from nest_ssl.data.tarred.members import audio_members, file_id, open_shard, read_member
from nest_ssl.errors import AudioError, ManifestError, NestError, ShardError
from nest_ssl.folder_lock import lock_folder

_MANIFEST, _METADATA, _SHARDED_MANIFESTS = "tarred_audio_manifest.json", "metadata.yaml", "sharded_manifests"
Progress = Callable[[int, int], None]  # utterances done, utterances in all
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
        return self.folder / _SHARDED_MANIFESTS / f"manifest_{self.number}.json"


@dataclass(frozen=True)
class TarredSet:
    """A tarred set: its paths for a configuration, and what it holds."""

    manifest: str
    tars: str
    utterances: int
    left_over: int  # utterances that would have made shards uneven
    kept_shards: int  # kept from an earlier run


def make_tarred_sets(
    manifest: Path,
    folder: Path,
    options: TarOptions,
    *,
    buckets: int = 1,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[TarredSet]:
    """Put the audio of a manifest into `num_shards` tar files in a folder.

    Several buckets, by duration, become one set each, in `bucket1`, `bucket2` and so on.
    """
    utterances = list(_read_utterances(manifest, options))
    if not utterances:
        low, high = options.min_duration or 0, options.max_duration or math.inf
        raise ManifestError(f"{manifest}: has no utterance from {low:g} to {high:g} s")
    parts = {folder: utterances}
    if buckets > 1:
        filled = _in_buckets(utterances, options, buckets)
        parts = {folder / f"bucket{number}": bucket for number, bucket in enumerate(filled, start=1)}
    plans = {part: list(_plan_shards(bucket, part, options)) for part, bucket in parts.items()}
    total, done, kept = sum(len(shard.utterances) for shard in chain(*plans.values())), 0, set[Path]()
    with lock_folder(folder, "wait for its end, or give a new folder"):
        for part, bucket in parts.items():
            _refuse_other_sets(part, _metadata(bucket, options), options.num_shards)
        made = in_processes(
            _ensure, chain(*plans.values()), workers, died_at=lambda shard: f"{shard.tar}: a process died making it"
        )
        with contextlib.closing(made):
            for shard, was_there in made:
                if was_there:
                    kept.add(shard.tar)
                done += len(shard.utterances)
                if progress is not None:
                    progress(done, total)
        return [_finish(part, plan, parts[part], options, kept) for part, plan in plans.items()]


def _read_utterances(manifest: Path, options: TarOptions) -> Iterator[Utterance]:
    """Yield the utterances within the duration limits; as in training, those without a duration are kept."""
    low, high = options.min_duration or 0, options.max_duration or math.inf
    file = resolve_path(str(manifest))
    for number, value, row in read_entries(file):
        if not isinstance(value.get("audio_filename", value.get("audio_filepath")), str):
            raise ManifestError(f"{file}:{number}: names several files for one signal, which a tar file cannot hold")
        duration = None if math.isnan(row.duration) else row.duration
        if duration is None or low <= duration <= high:
            offset = 0.0 if math.isnan(row.offset) else row.offset
            yield Utterance(value, row.path, duration, offset, f"{file}:{number}")


def _in_buckets(utterances: Sequence[Utterance], options: TarOptions, buckets: int) -> list[list[Utterance]]:
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


def _plan_shards(utterances: Sequence[Utterance], folder: Path, options: TarOptions) -> Iterator[Shard]:
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


def _ensure(shard: Shard) -> bool:
    """Make a shard, unless it is complete; return whether it was.

    Its manifest is written first, so that a folder with tar files but without manifests is not ours.
    """
    if _is_there(shard):
        return True
    with atomic_write(shard.tar) as temporary:
        with tarfile.open(temporary, "w") as tar:
            rows = [_add(tar, utterance) for utterance in shard.utterances]
        _verify(str(temporary), shard, rows)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with atomic_write(shard.manifest) as temporary_manifest:
            temporary_manifest.write_bytes(lines.encode("utf-8", "surrogatepass"))
    return False


def _add(tar: tarfile.TarFile, utterance: Utterance) -> dict[str, Any]:
    """Add an utterance to the tar file; return its line in the manifest."""
    try:
        content, suffix, seconds = pack(utterance.source, utterance.offset, utterance.duration)
    except AudioError as error:
        raise AudioError(f"{error} ({utterance.line})") from error
    row = utterance.new_row(suffix, seconds)
    member = tarfile.TarInfo(row["audio_filepath"])  # no owner and no time: the same bytes every time
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    return row


def _is_there(shard: Shard) -> bool:
    """Return whether a shard is complete: its manifest has the planned lines, and all audio can be read."""
    try:
        rows = [json.loads(line) for line in shard.manifest.read_bytes().splitlines()]
        if len(rows) != len(shard.utterances) or not all(map(Utterance.has_row, shard.utterances, rows)):
            return False
        _verify(str(shard.tar), shard, rows)
    except (OSError, ValueError, NestError):
        return False
    return True


def _verify(path: str, shard: Shard, rows: Sequence[dict[str, Any]]) -> None:
    """Read a tar file back: it must hold exactly these members, and each must decode to its end."""
    with open_shard(path) as file:
        members = list(audio_members(path, file))
        if [member.name for member in members] != [row["audio_filepath"] for row in rows]:
            raise ShardError(f"{path}: does not hold what was written to it; is the disk damaged?")
        for member, utterance in zip(members, shard.utterances, strict=True):
            decode(f"{utterance.source} ({utterance.line})", read_member(path, file, member))


def _finish(
    folder: Path, plan: Sequence[Shard], utterances: Sequence[Utterance], options: TarOptions, kept: set[Path]
) -> TarredSet:
    """Write the files of the whole set last: if they exist, the set is complete."""
    with atomic_write(folder / _MANIFEST) as temporary, temporary.open("wb") as file:
        for shard in plan:
            file.write(shard.manifest.read_bytes())
    with atomic_write(folder / _METADATA) as temporary:
        temporary.write_text(_metadata(utterances, options), encoding="utf-8")
    count = sum(len(shard.utterances) for shard in plan)
    return TarredSet(
        manifest=(folder / _MANIFEST).as_posix(),
        tars=(folder / f"audio__OP_0..{len(plan) - 1}_CL_.tar").as_posix(),
        utterances=count,
        left_over=len(utterances) - count,
        kept_shards=sum(shard.tar in kept for shard in plan),
    )


def _metadata(utterances: Sequence[Utterance], options: TarOptions) -> str:
    """Return NeMo's metadata of a set, with a digest of its utterances, so that no other set overwrites it."""
    digest = hashlib.sha256()
    for utterance in utterances:
        digest.update(json.dumps(utterance.row, sort_keys=True).encode())
    content = {
        "version": 0,
        "num_samples_per_shard": len(utterances) // options.num_shards,
        "is_concatenated_manifest": False,
        "dataset_config": {**asdict(options), "slice_with_offset": True, "shard_manifests": True},
        "history": [],
        "made_from": digest.hexdigest(),
    }
    return OmegaConf.to_yaml(OmegaConf.create(content))


def _refuse_other_sets(folder: Path, metadata: str, shards: int) -> None:
    """Raise if the folder holds another set (other metadata, or more shards), or tar files that no run made."""
    existing = folder / _METADATA
    is_other = existing.is_file() and existing.read_text(encoding="utf-8") != metadata
    tars = [(path, int(path.stem[6:])) for path in folder.glob("audio_*.tar") if path.stem[6:].isdecimal()]
    if is_other or any(number >= shards for _, number in tars):
        raise NestError(f"{folder}: holds another tarred set; give a new folder, or remove that one")
    if tars and not (folder / _SHARDED_MANIFESTS).is_dir():
        raise NestError(f"{tars[0][0]}: does not belong to this set; give a new folder, or remove that file")
