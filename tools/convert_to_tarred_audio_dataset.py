#!/usr/bin/env python3
"""Run `nest-ssl data tar` with the name and the flags of NeMo's script; segments are always cut out of their files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also works where the package is not installed

import typer  # noqa: E402

from nest_ssl.cli.common_options import PROCESSORS  # noqa: E402
from nest_ssl.cli.data import tar  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest_path", type=Path, required=True, help="JSON-lines manifest of audio files")
    parser.add_argument("--target_dir", type=Path, default=Path("tarred"), help="folder (default: %(default)s)")
    parser.add_argument("--num_shards", type=int, required=True, help="tar files to make, in each bucket")
    parser.add_argument("--max_duration", type=float, help="seconds; leave out longer utterances")
    parser.add_argument("--min_duration", type=float, help="seconds; leave out shorter utterances")
    parser.add_argument("--shuffle", action="store_true", help="put utterances in random order first")
    parser.add_argument("--shuffle_seed", type=int, default=0, help="seed of that order (default: %(default)s)")
    parser.add_argument("--sort_in_shards", action="store_true", help="sort utterances in each tar file by duration")
    parser.add_argument("--slice_with_offset", action="store_true", help="accepted; this is always done")
    parser.add_argument("--buckets_num", type=int, default=1, help="sets to make, by duration (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes; -1: one for each processor")
    arguments = parser.parse_args()
    if arguments.num_shards < 1 or arguments.buckets_num < 1 or arguments.workers == 0:
        parser.error("--num_shards and --buckets_num need at least 1, --workers at least 1 or -1")
    try:
        tar(
            arguments.manifest_path,
            arguments.target_dir,
            arguments.num_shards,
            shuffle=arguments.shuffle,
            seed=arguments.shuffle_seed,
            sort_in_shards=arguments.sort_in_shards,
            buckets=arguments.buckets_num,
            min_duration=arguments.min_duration,
            max_duration=arguments.max_duration,
            workers=arguments.workers if arguments.workers > 0 else PROCESSORS,
        )
    except typer.Exit as end:
        sys.exit(end.exit_code)


if __name__ == "__main__":
    main()
