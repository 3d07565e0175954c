"""Make tarred sets, and say what to put into the configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nest_ssl.cli.terminal import Bar, show

if TYPE_CHECKING:
    from nest_ssl.apps.datatools.tar_plan import TarOptions
    from nest_ssl.apps.datatools.tar_writer import TarredSet


def tar_command(
    manifest: Path,
    output: Path,
    options: TarOptions,
    buckets: int,
    workers: int | None,
    as_json: bool = False,
    val: Sequence[str] = (),
) -> None:
    """Make them and say so."""
    from nest_ssl.apps.datatools.tar_writer import make_tarred_sets

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
        show(_summary(sets, options, output, val))


def _summary(sets: list[TarredSet], options: TarOptions, output: Path, val: Sequence[str]) -> list[str]:
    from nest_ssl.shell import hydra_value, over_lines, quoted

    utterances, left_over = sum(one.utterances for one in sets), sum(one.left_over for one in sets)
    shards, kept = len(sets) * options.num_shards, sum(one.kept_shards for one in sets)
    lines = [f"{output}: {utterances} utterances in {shards} tar files, each read back and decoded"]
    if kept:
        lines.append(f"{kept} of the tar files were there already and are as they were")
    if left_over:
        lines.append(f"{left_over} utterances are left out, since all tar files of a set hold equally many")
    words = [
        "model.train_ds.is_tarred=true",
        f"model.train_ds.manifest_filepath={_hydra([one.manifest for one in sets])}",
        f"model.train_ds.tarred_audio_filepaths={_hydra([one.tars for one in sets])}",
    ]
    if val:
        words.append(f"model.validation_ds.manifest_filepath={hydra_value(val)}")
        return [*lines, "to train on it:", *over_lines(["nest-ssl train", *words])]
    lines.append("to train on it, beside a validation manifest (--val MANIFEST prints the whole command):")
    return [*lines, *(f"  {quoted(word)}" for word in words)]


def _hydra(paths: Sequence[str]) -> str:
    """One path, or one list for each bucket."""
    from nest_ssl.shell import hydra_value

    return hydra_value(paths) if len(paths) == 1 else f"[{','.join(f'[{hydra_value([path])}]' for path in paths)}]"
