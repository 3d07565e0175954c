"""Make tarred sets, and say what to put into the configuration."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nest_ssl.cli.terminal import Bar, show

if TYPE_CHECKING:
    from nest_ssl.data.tar_plan import TarOptions
    from nest_ssl.data.tar_writer import TarredSet


def tar_command(
    manifest: Path, output: Path, options: TarOptions, buckets: int, workers: int | None, as_json: bool = False
) -> None:
    """Make them and say so."""
    from nest_ssl.data.tar_writer import make_tarred_sets

    with Bar("packed") as bar:
        sets = make_tarred_sets(
            manifest,
            output,
            options,
            buckets=buckets,
            workers=workers or os.cpu_count() or 1,
            progress=lambda done, total: bar(done, total, f"{done:,} of {total:,} utterances"),
        )
    if as_json:
        print(json.dumps({"sets": [asdict(one) for one in sets]}, indent=2))
    else:
        show(_summary(sets, options, output))


def _summary(sets: list[TarredSet], options: TarOptions, output: Path) -> list[str]:
    utterances, left_over = sum(one.utterances for one in sets), sum(one.left_over for one in sets)
    shards, kept = len(sets) * options.num_shards, sum(one.kept_shards for one in sets)
    lines = [f"{output}: {utterances} utterances in {shards} tar files, each read back and decoded"]
    if kept:
        lines.append(f"{kept} of the tar files were there already and are as they were")
    if left_over:
        lines.append(f"{left_over} utterances are left out, since all tar files of a set hold equally many")
    manifests, tars = [[one.manifest] for one in sets], [[one.tars] for one in sets]
    lines.append("to train on it:")
    lines.append("  model.train_ds.is_tarred=true")
    for name, paths in (("manifest_filepath", manifests), ("tarred_audio_filepaths", tars)):
        lines.append(f"  model.train_ds.{name}={paths[0][0] if len(sets) == 1 else json.dumps(paths)}")
    return lines
