#!/usr/bin/env python3
"""Make data/dummy_ssl: speech-like audio, noise and manifests to try every command on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also works where the package is not installed

from nest_ssl.data.dummy import make_dummy_corpus, show_progress  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "data" / "dummy_ssl", help="folder (default: %(default)s)"
    )
    parser.add_argument("--train", type=int, default=160, help="utterances to train on (default: %(default)s)")
    parser.add_argument("--val", type=int, default=24, help="utterances to validate on (default: %(default)s)")
    parser.add_argument("--noise", type=int, default=8, help="noise files (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="make it anew even if it is complete")
    arguments = parser.parse_args()
    if min(arguments.train, arguments.val, arguments.noise) < 1 or arguments.seed < 0:
        parser.error("--train, --val and --noise need at least 1, --seed at least 0")
    corpus = make_dummy_corpus(
        arguments.output,
        train=arguments.train,
        val=arguments.val,
        noise=arguments.noise,
        seed=arguments.seed,
        force=arguments.force,
        progress=show_progress,
    )
    print(f"ready: {corpus.train_manifest}, {corpus.val_manifest.name}, {corpus.noise_manifest.name}")


if __name__ == "__main__":
    main()
