"""A NeMo manifest as lhotse's cuts, line by line."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nest_ssl.data.dataset import MOST_SKIPPED_IN_A_ROW, UnreadablePolicy
from nest_ssl.data.manifest import parse_rows
from nest_ssl.data.paths import resolve_path
from nest_ssl.errors import AudioError, ManifestError

log = logging.getLogger(__name__)

Cut = Any  # lhotse's


class ManifestCuts:
    """The lines of a NeMo manifest as cuts; of one in shards, shard after shard.

    A line without `offset` stands for its whole file, whatever `duration` it says: NeMo's reading. Where shards are
    shuffled, each pass shuffles the order of the pass before, as lhotse's chain does in NeMo.
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
        from lhotse.lazy import count_newlines_fast

        return sum(count_newlines_fast(shard) for shard in self.shards)

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
                try:
                    cut = _manifest_cut(row, shard, line)
                except AudioError as error:
                    skipped += 1
                    if self.unreadable == "stop" or skipped > MOST_SKIPPED_IN_A_ROW:
                        raise
                    log.warning("skipped %s", error)
                    continue
                skipped = 0
                yield cut


def _manifest_cut(row: Any, file: str, line: int) -> Cut:
    """What one line says, as a cut. The file's header is read unless the line gives its `sampling_rate`."""
    from lhotse import AudioSource, Recording
    from lhotse.utils import compute_num_samples

    where = f"{file}:{line}"
    path = row.get("audio_filepath") if isinstance(row, dict) else None
    if not isinstance(path, str) or not path:
        raise ManifestError(f"{where}: audio_filepath is {path!r}; expected the path of an audio file")
    duration, offset = row.get("duration"), row.get("offset")
    if type(duration) not in (int, float) or duration <= 0:
        raise ManifestError(f"{where}: duration is {duration!r}; expected seconds > 0")
    if offset is not None and (type(offset) not in (int, float) or offset < 0):
        raise ManifestError(f"{where}: offset is {offset!r}; expected seconds >= 0")
    path = resolve_path(path, str(Path(file).parent))
    rate = row.get("sampling_rate", row.get("sample_rate"))
    try:
        if rate is None:
            recording = Recording.from_file(path)
        else:
            length = duration + (offset or 0)
            recording = Recording(
                id=path,
                sources=[AudioSource(type="file", channels=[0], source=path)],
                sampling_rate=rate,
                num_samples=compute_num_samples(length, rate),
                duration=length,
                channel_ids=[0],
            )
        cut = recording.to_cut()
        if offset is not None:
            cut = cut.truncate(offset=offset, duration=duration, preserve_id=True)
            cut.id = f"{cut.id}-{round(offset * 100):06d}-{round(duration * 100):06d}"
    except Exception as error:  # lhotse's readers raise whatever their libraries do
        reason = str(error).strip().splitlines()
        raise AudioError(f"{path}: cannot be read: {reason[0] if reason else type(error).__name__} ({where})") from None
    if "validation_status" in row:
        cut.validation_status = row["validation_status"]
    return cut
