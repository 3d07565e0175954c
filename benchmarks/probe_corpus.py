"""Real speech to show that pre-training learns: played forwards or backwards? And other speech to pre-train on.

python -m benchmarks.probe_corpus --output probe_data

Every piece of speech has an answer to that, and means over time cannot know it: a piece and its reverse have the same.
Prompts are divided by their names: pieces of one part, half of them reversed, are `direction.json`, with the fields
`direction` and `prompt`; the others are `speech.json`, in pieces to pre-train on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import soundfile

from benchmarks.corpus import Clip, load_corpus
from nest_ssl.environments import cache_folder

PIECE = 1.2  # seconds that are tried
PRE_TRAINING_PIECE = 2.5  # seconds, about
SILENCE = 0.01  # mean of the absolute samples
ONE_IN = 5  # prompts are not pre-trained on


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("probe_data"), help="folder for manifests and audio")
    parser.add_argument("--corpus", type=Path, default=cache_folder() / "bench", help="benchmarks' audio")
    parser.add_argument("--install-speech", action="store_true", help="install the packages of speech by apt")
    options = parser.parse_args(arguments)
    corpus = load_corpus(options.corpus, options.install_speech)
    tried = [clip for clip in corpus.prompts if zlib.crc32(Path(clip.audio_filepath).stem.encode()) % ONE_IN == 0]
    known = [clip for clip in corpus.prompts if clip not in tried]
    pieces = options.output / "pieces"
    pieces.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    _write(options.output / "direction.json", (line for clip in tried for line in _turned(clip, pieces, generator)))
    _write(options.output / "speech.json", (line for clip in known for line in _divided(clip)))
    print(f"noise: {corpus.noise_manifest}")


def _turned(clip: Clip, folder: Path, generator: random.Random) -> Iterator[dict[str, object]]:
    """Pieces of a prompt that are not silent, each reversed or not."""
    source = Path(clip.audio_filepath)
    samples, rate = soundfile.read(source, dtype="float32")
    length = round(PIECE * rate)
    for number in range(len(samples) // length):
        piece = samples[number * length :][:length]
        if np.abs(piece).mean() < SILENCE:
            continue
        backwards = generator.random() < 0.5
        target = folder / f"{source.stem}_{number}.wav"
        soundfile.write(target, piece[::-1] if backwards else piece, rate)
        direction = "backwards" if backwards else "forwards"
        yield {"audio_filepath": str(target.resolve()), "direction": direction, "prompt": source.stem}


def _divided(clip: Clip) -> Iterator[dict[str, object]]:
    count = max(1, round(clip.duration / PRE_TRAINING_PIECE))
    seconds = clip.duration / count
    for number in range(count):
        yield {"audio_filepath": clip.audio_filepath, "offset": number * seconds, "duration": seconds}


def _write(path: Path, lines: Iterable[dict[str, object]]) -> None:
    texts = [json.dumps(line) + "\n" for line in lines]
    path.write_text("".join(texts), encoding="utf-8")
    print(f"{path}: {len(texts)} lines")


if __name__ == "__main__":
    main(sys.argv[1:])
