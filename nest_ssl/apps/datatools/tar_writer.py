"""Put the audio of a manifest into tar files, in NeMo's layout: `nest-ssl data tar`.

One process makes a shard, and reads it back and decodes it before it gets its final name; the same input gives the same
bytes. So a shard with its final name is complete, and an interrupted run continues with the missing ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import soundfile
from omegaconf import OmegaConf

from nest_ssl.apps.datatools.processes import in_processes
from nest_ssl.apps.datatools.tar_plan import (
    Shard,
    TarOptions,
    Utterance,
    in_buckets,
    plan_shards,
    read_utterances,
)
from nest_ssl.atomic import atomic_write
from nest_ssl.data.audio.opening import as_frames, audio_errors, open_audio, read_frames
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.tarred.members import audio_members, audio_suffixes, file_id, open_shard, read_member
from nest_ssl.errors import AudioError, NestError, ShardError
from nest_ssl.folder_lock import lock_folder

MANIFEST, METADATA = "tarred_audio_manifest.json", "metadata.yaml"
Progress = Callable[[int, int], None]  # utterances done, utterances in all
# subtype -> dtype to read, and format and subtype to write without loss. Floats are not written as WAV: libsndfile
# writes the time of day into it.
_LOSSLESS = {
    "PCM_U8": ("int16", "WAV", "PCM_U8"),
    "PCM_16": ("int16", "WAV", "PCM_16"),
    "PCM_24": ("int32", "WAV", "PCM_24"),
    "PCM_32": ("int32", "WAV", "PCM_32"),
    "DOUBLE": ("float64", "AU", "DOUBLE"),
}
_DECODED = ("float32", "AU", "FLOAT")


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
    utterances = read_utterances(manifest, options)
    if buckets == 1:
        parts = {folder: utterances}
    else:
        filled = in_buckets(utterances, options, buckets)
        parts = {folder / f"bucket{number}": bucket for number, bucket in enumerate(filled, start=1)}
    plans = {one_folder: list(plan_shards(bucket, one_folder, options)) for one_folder, bucket in parts.items()}
    with lock_folder(folder, "wait for its end, or give a new folder"):
        for one_folder, bucket in parts.items():
            _refuse_other_sets(one_folder, _metadata(bucket, options), options.num_shards)
        kept = _make_shards(list(chain(*plans.values())), workers, progress)
        return [_finish(each, plan, parts[each], options, kept) for each, plan in plans.items()]


def _make_shards(shards: Sequence[Shard], workers: int, progress: Progress | None) -> set[Path]:
    """Make all shards; return the tar files that were kept from an earlier run."""
    total, done, kept = sum(len(shard.utterances) for shard in shards), 0, set()
    made = in_processes(
        _ensure,
        shards,
        workers,
        died_at=lambda shard: f"{shard.tar}: a process died making it",
    )
    with contextlib.closing(made):
        for shard, was_there in made:
            done += len(shard.utterances)
            if was_there:
                kept.add(shard.tar)
            if progress is not None:
                progress(done, total)
    return kept


def _ensure(shard: Shard) -> bool:
    """Make a shard, unless it is complete; return whether it was."""
    if _is_there(shard):
        return True
    if shard.tar.exists() and not _is_ours(shard):
        raise NestError(f"{shard.tar}: does not belong to this set; give a new folder, or remove that file")
    with atomic_write(shard.tar) as temporary:
        with tarfile.open(temporary, "w") as tar:
            rows = [_add(tar, utterance) for utterance in shard.utterances]
        _verify(str(temporary), shard, rows)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with atomic_write(shard.manifest) as temporary:
        temporary.write_bytes(lines.encode("utf-8", "surrogatepass"))
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


def pack(path: str, offset: Seconds, duration: Seconds | None) -> tuple[bytes, str, Seconds]:
    """Return the content, suffix and duration of an audio file with the audio from `offset` on.

    A nearly whole file is copied unchanged; a part is cut out without loss.
    """
    with open_audio(path) as file, audio_errors(path):
        rate = file.samplerate
        start = as_frames(offset, rate)
        frames = max(0, file.frames - start)
        wanted = frames if duration is None else min(frames, as_frames(duration, rate))
        if wanted == 0:
            raise AudioError(f"{path}: has no samples at offset {offset:g} s")
        if start == 0 and frames - wanted < rate:  # durations are rounded, and training reads no more than the duration
            suffix = Path(path).suffix[1:].lower()
            known = suffix if suffix in audio_suffixes() else file.format.lower()
            return Path(path).read_bytes(), known, frames / rate
        dtype, format_, subtype = _LOSSLESS.get(file.subtype, _DECODED)
        if file.format == "FLAC" and subtype in ("PCM_16", "PCM_24"):
            format_ = "FLAC"
        if start:  # only if needed, as in training: after a seek, MP3 files give other samples
            file.seek(start)
        samples = read_frames(file, path, wanted, dtype)
        cut = io.BytesIO()
        soundfile.write(cut, samples, rate, format=format_, subtype=subtype)
    return cut.getvalue(), format_.lower(), wanted / rate


def decode(name: str, content: bytes) -> None:
    """Raise if the bytes are not an audio file that can be read to its end."""
    with open_audio(name, content) as file, audio_errors(name):
        frames = sum(len(block) for block in file.blocks(1 << 20, dtype="float32"))
        if frames == 0 or frames < file.frames:
            raise AudioError(f"{name}: has {frames} samples, its header says {file.frames}")


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


def _is_ours(shard: Shard) -> bool:
    """Return whether an earlier run made this tar file, damaged or not: it has a manifest, or the planned members."""
    if shard.manifest.is_file():
        return True
    try:
        with open_shard(str(shard.tar)) as file:
            members = [file_id(member.name) for member in audio_members(str(shard.tar), file)]
    except (OSError, NestError):
        return False
    return members == [utterance.name for utterance in shard.utterances]


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
    with atomic_write(folder / MANIFEST) as temporary, temporary.open("wb") as file:
        for shard in plan:
            file.write(shard.manifest.read_bytes())
    with atomic_write(folder / METADATA) as temporary:
        temporary.write_text(_metadata(utterances, options), encoding="utf-8")
    count = sum(len(shard.utterances) for shard in plan)
    return TarredSet(
        manifest=(folder / MANIFEST).as_posix(),
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
    """Raise if the folder holds another set: with other metadata, or with more shards."""
    existing = folder / METADATA
    is_other = existing.is_file() and existing.read_text(encoding="utf-8") != metadata
    numbers = [int(found[1]) for path in folder.glob("audio_*.tar") if (found := re.search(r"_(\d+)\.tar$", path.name))]
    if is_other or any(number >= shards for number in numbers):
        raise NestError(f"{folder}: holds another tarred set; give a new folder, or remove that one")
