"""The lines of a NeMo manifest as lhotse's cuts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

from nest_ssl.data.audio.entry import check_offset
from nest_ssl.data.audio.opening import HIGHEST_RATE, LOWEST_RATE
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.data.dataset import MOST_SKIPPED_IN_A_ROW
from nest_ssl.data.manifest_lines import ManifestEntry, Seconds, check_time, line_blocks, parse_rows
from nest_ssl.data.paths import resolve_path
from nest_ssl.data.problems import UnreadablePolicy, file_name, with_line
from nest_ssl.errors import AudioError, ManifestError, one_line

Cut = Any  # lhotse's

_ENTRY, _ERROR = "nest_ssl_entry", "nest_ssl_error"  # custom fields of a cut
_BYTES_AT_ONCE = 2**20
_LONGEST: Seconds = 1e9  # 31 years: up to this, times are exact to less than a sample
_FIRST_READER = re.compile(r"^Exception #0 .*?: <class '[^']*'>: (.+)$", re.MULTILINE)


class ManifestCuts:
    """The lines of a NeMo manifest as cuts; of a sharded manifest, shard after shard.

    As in NeMo, a line without `offset` means its whole file, whatever its `duration`. If shards are shuffled, each pass
    shuffles the order of the pass before, as lhotse's chain does in NeMo.
    """

    def __init__(
        self, shards: Sequence[str], *, shuffle: bool, seed: int, unreadable: UnreadablePolicy, key: str
    ) -> None:
        self.shards = shards
        self.shuffle = shuffle and len(shards) > 1
        self.seed = seed
        self.unreadable = unreadable
        self.key = key
        self.epoch = 0

    def __len__(self) -> int:
        blocks = (block for shard in self.shards for _, block in line_blocks(shard, _BYTES_AT_ONCE, self.key))
        return sum(block.count(b"\n") for block in blocks)

    def __iter__(self) -> Iterator[Cut]:
        shards = list(self.shards)
        self.epoch += 1
        for epoch in range(self.epoch if self.shuffle else 0):
            random.Random(self.seed + epoch).shuffle(shards)
        skipped = 0
        for shard in shards:
            for line, row in parse_rows(shard, self.key):
                if isinstance(row, dict) and row.get("_skipme"):
                    continue
                entry = _entry(row, shard, line)
                try:
                    cut, error = _cut(row, entry), None
                    skipped = 0
                except AudioError as found:
                    skipped += 1
                    if self.unreadable == "stop" or skipped > MOST_SKIPPED_IN_A_ROW:
                        raise with_line(found, entry) from None
                    cut, error = _unopened_cut(entry, SAMPLE_RATE), (str(found), found.kind)
                cut.custom = {_ENTRY: entry}
                if error is not None:
                    cut.custom[_ERROR] = error
                if "validation_status" in row:
                    cut.validation_status = row["validation_status"]
                yield cut


def entry_of(cut: Cut) -> ManifestEntry:
    """Return the manifest entry of a cut; for a cut of a cut set or Shar, an entry of what is known."""
    entry = _custom(cut).get(_ENTRY)
    if isinstance(entry, ManifestEntry):
        return entry
    recording = getattr(cut, "recording", None)
    sources = [] if recording is None else recording.sources
    file = str(sources[0].source) if sources and sources[0].type == "file" else cut.id
    return ManifestEntry(audio_file=file, duration=None, offset=0.0, line=f"cut {cut.id}")


def error_of(cut: Cut) -> AudioError | None:
    """Return why the file of a cut could not be opened, or None; such a cut is skipped and reported when it is read."""
    error = _custom(cut).get(_ERROR)
    return None if error is None else AudioError(*error)


def lhotse_reason(error: Exception) -> str:
    """Return the message of lhotse's first reader as one line, of the many lines of its error."""
    first = _FIRST_READER.search(str(error))
    return one_line(first[1] if first else (str(error).splitlines() or [""])[0].split(" This could be")[0] or error)


def _custom(cut: Cut) -> Mapping[str, Any]:
    return getattr(cut, "custom", None) or {}


def _entry(row: Any, file: str, line: int) -> ManifestEntry:
    where = f"{file}:{line}"
    path = row.get("audio_filepath") if isinstance(row, dict) else None
    if not isinstance(path, str) or not path:
        raise ManifestError(f"{where}: audio_filepath is {path!r}; expected the path of an audio file")
    duration, offset, rate = row.get("duration"), row.get("offset"), _rate(row)
    try:
        check_time("duration", duration, zero=False)
        if offset is not None:
            check_time("offset", offset, zero=True)
    except ValueError as error:
        raise ManifestError(f"{where}: {error}") from None
    if rate is not None and (type(rate) not in (int, float) or not LOWEST_RATE <= rate <= HIGHEST_RATE):
        expected = f"expected {LOWEST_RATE} to {HIGHEST_RATE} Hz"
        raise ManifestError(f"{where}: sampling_rate is {short_repr(rate)}; {expected}")
    path = resolve_path(path, str(Path(file).parent))
    return ManifestEntry(path, duration, offset or 0.0, where, whole_file=offset is None)


def _rate(row: Mapping[str, Any]) -> Any:
    return row.get("sampling_rate", row.get("sample_rate"))


def _cut(row: Mapping[str, Any], entry: ManifestEntry) -> Cut:
    """Return the cut of one line; the file's header is read unless the line gives its `sampling_rate`."""
    from lhotse import Recording

    from nest_ssl.data.lhotse.readers import own_readers

    rate = _rate(row)
    path = file_name(entry)
    try:
        if rate is not None:
            return _unopened_cut(entry, rate)
        with own_readers():
            recording = Recording.from_file(path)
        if recording.num_samples == 0:
            raise AudioError(f"{path}: has no samples", "empty")
        check_offset(entry, recording.duration)
        return _part(recording, entry)
    except AudioError:
        raise
    except Exception as error:  # lhotse passes on the exceptions of its libraries
        raise AudioError(f"{path}: cannot be read: {lhotse_reason(error)}") from None


def _unopened_cut(entry: ManifestEntry, rate: int) -> Cut:
    """Return the cut that a line describes, without opening its file."""
    from lhotse import AudioSource, Recording
    from lhotse.utils import compute_num_samples

    assert entry.duration is not None
    path, length = file_name(entry), min(entry.duration + entry.offset, _LONGEST)
    recording = Recording(
        id=path,
        sources=[AudioSource(type="file", channels=[0], source=path)],
        sampling_rate=rate,
        num_samples=compute_num_samples(length, rate),
        duration=length,
        channel_ids=[0],
    )
    return _part(recording, entry)


def _part(recording: Any, entry: ManifestEntry) -> Cut:
    """Return the whole recording or, if the line has an offset, its part."""
    cut = recording.to_cut()
    if not entry.whole_file:
        assert entry.duration is not None
        offset, duration = min(entry.offset, _LONGEST), min(entry.duration, _LONGEST)
        cut = cut.truncate(offset=offset, duration=duration, preserve_id=True)
        cut.id = f"{cut.id}-{round(offset * 100):06d}-{round(duration * 100):06d}"
    return cut
