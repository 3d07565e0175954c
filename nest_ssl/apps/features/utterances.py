"""List the utterances to encode: files and lines of manifests, each with a unique name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nest_ssl.data.audio import AudioFile, ChannelSelector
from nest_ssl.data.audio.entry import read_entry, seconds_in_file
from nest_ssl.data.manifest import stable_hash
from nest_ssl.data.manifest_lines import ManifestEntry, Seconds, parse_rows, parse_value
from nest_ssl.data.paths import resolve_path
from nest_ssl.data.problems import file_name, with_line
from nest_ssl.errors import AudioError, ManifestError

MANIFEST_SUFFIXES = (".json", ".jsonl", ".manifest")
_LONGEST_NAME = 200  # bytes of the 255 that file systems allow; a suffix follows


@dataclass(frozen=True)
class NamedUtterance:
    """A part of an audio file, with the name of its features."""

    name: str
    entry: ManifestEntry
    seconds: Seconds  # from the manifest or the file's header


def list_entries(inputs: Iterable[str]) -> list[ManifestEntry]:
    """Return one entry per audio file, and all lines of the inputs with a manifest's suffix."""
    entries: list[ManifestEntry] = []
    for text in inputs:
        if text.endswith(MANIFEST_SUFFIXES):
            entries.extend(entry for entry, _ in labelled_entries(text))
        else:
            entries.append(ManifestEntry(os.path.expanduser(text), None, 0.0, "command line"))  # noqa: PTH111
    return entries


def labelled_entries(manifest: str) -> Iterator[tuple[ManifestEntry, dict[str, Any]]]:
    """Yield the lines of a manifest, each with all of its fields."""
    file = resolve_path(manifest)
    count = 0
    for number, value in parse_rows(file, "MANIFEST"):
        try:
            yield parse_value(value).entry(file, number), value
        except ValueError as error:
            raise ManifestError(f"{file}:{number}: {error}") from None
        count += 1
    if not count:
        raise ManifestError(f"{manifest}: has no entries")


def measure(entry: ManifestEntry) -> Seconds:
    """Return the length of an entry, from its line or else from the file's header; raise AudioError without either."""
    if entry.duration is not None:
        return entry.duration
    try:
        with AudioFile(file_name(entry)) as file:
            return max(0.0, seconds_in_file(file) - entry.offset)
    except AudioError as error:
        raise with_line(error, entry) from error


def shared_folder(entries: Sequence[ManifestEntry]) -> str:
    """Return the innermost folder that contains all files."""
    try:
        return os.path.commonpath({os.path.dirname(_absolute(entry)) for entry in entries})  # noqa: PTH120
    except ValueError:  # several drives of Windows
        return ""


def unique_names(entries: Sequence[ManifestEntry], folder: str) -> list[str]:
    """Return a name for each entry, its path relative to the folder; only equal parts of a file share a name.

    `a/x.wav` keeps its suffix because `a/x.flac` may exist too; a part of it is `a/x.wav@<offset>+<duration>`.
    """
    taken: dict[str, Any] = {}
    return [_name(entry, folder, taken) for entry in entries]


def _name(entry: ManifestEntry, folder: str, taken: dict[str, Any]) -> str:
    path = _absolute(entry)
    part = (entry.audio_file, entry.offset, entry.duration)
    name = Path(os.path.relpath(path, folder) if folder else path.replace(":", "")).as_posix()
    if entry.offset or entry.duration is not None:
        name += f"@{entry.offset:.6g}+{'' if entry.duration is None else f'{entry.duration:.6g}'}"
    parent, _, last = name.rpartition("/")
    is_long, is_one_of_several = len(last.encode()) > _LONGEST_NAME, not isinstance(entry.audio_file, str)
    if is_long or is_one_of_several or taken.setdefault(name.casefold(), part) != part:
        last = f"{last.encode()[:_LONGEST_NAME].decode(errors='ignore')}~{stable_hash(repr(part)):016x}"
    return f"{parent}/{last}" if parent else last


def _absolute(entry: ManifestEntry) -> str:
    return os.path.abspath(file_name(entry))  # noqa: PTH100 - pathlib's resolve would follow links


def batches_by_duration(durations: Sequence[Seconds], batch_seconds: Seconds) -> list[list[int]]:
    """Return batches of indices, from long to short, of at most so many seconds including padding.

    The longest come first, so that a lack of memory shows at once. A longer utterance is a batch of its own.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(durations)), key=lambda index: -durations[index]):
        if batches and durations[batches[-1][0]] * (len(batches[-1]) + 1) <= batch_seconds:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def read(entry: ManifestEntry, sample_rate: int, channel_selector: ChannelSelector = None) -> Tensor:
    """Read the samples of an entry; an AudioError names the line of the manifest."""
    try:
        samples, _ = read_entry(entry, target_sr=sample_rate, channel_selector=channel_selector)
    except AudioError as error:
        raise with_line(error, entry) from error
    return torch.from_numpy(samples)
