"""Tarred sets in NeMo's layout, written with `tarfile` only, to test the reader without our writer."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TarredSet:
    """The paths of a tarred set for a configuration, and the number of its utterances."""

    manifest: str
    tars: str
    utterances: int


def make_tarred_set(manifest: Path, folder: Path, shards: int) -> TarredSet:
    """Pack the utterances of a manifest in order, the same number into each shard."""
    return _pack(_rows(manifest), manifest.parent, folder, shards)


def make_buckets(manifest: Path, folder: Path, shards: int) -> list[TarredSet]:
    """Pack them as two sets: durations up to the middle of their range, and longer ones."""
    rows = _rows(manifest)
    durations = [row["duration"] for row in rows]
    middle = (min(durations) + max(durations)) / 2
    halves = [row for row in rows if row["duration"] < middle], [row for row in rows if row["duration"] >= middle]
    return [_pack(half, manifest.parent, folder / f"bucket{number}", shards) for number, half in enumerate(halves, 1)]


def _rows(manifest: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in manifest.read_text().splitlines()]


def _pack(rows: Sequence[dict[str, Any]], audio: Path, folder: Path, shards: int) -> TarredSet:
    each, packed = len(rows) // shards, []
    (folder / "sharded_manifests").mkdir(parents=True)
    for shard in range(shards):
        own = []
        with tarfile.open(folder / f"audio_{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for row in rows[shard * each : (shard + 1) * each]:
                name = row["audio_filepath"].replace("/", "_")
                content = (audio / row["audio_filepath"]).read_bytes()
                member = tarfile.TarInfo(name)  # no owner or time: the header is the same everywhere
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
                own.append(json.dumps({**row, "audio_filepath": name, "shard_id": shard}) + "\n")
        (folder / "sharded_manifests" / f"manifest_{shard}.json").write_text("".join(own))
        packed += own
    manifest = folder / "tarred_audio_manifest.json"
    manifest.write_text("".join(packed))
    return TarredSet(str(manifest), str(folder / f"audio__OP_0..{shards - 1}_CL_.tar"), len(packed))
