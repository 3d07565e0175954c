"""Make a corpus of real speech that tests whether pre-training learns to hear the direction of time.

python -m benchmarks.probe_corpus --output probe_data --install-speech

Is a piece of speech played forwards or backwards? Means over time cannot tell: a piece and its reverse have the same.
Prompts are divided by their names. Pieces of one part, half of them reversed, are `direction.json`, and with music
behind them `direction_in_music.json`, with the fields `direction` and `prompt`; of the others, `speech.json` is to
pre-train on and `validation.json` to validate on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from benchmarks import debian_speech
from benchmarks.corpus import SHORTEST, Clip, Corpus, load_corpus
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.environments import cache_folder

LANGUAGES = (*debian_speech.LANGUAGES, "it", "ru")
PIECE = 1.2  # seconds of a test piece
PRE_TRAINING_PIECE = 2.5  # seconds, approximately
SILENCE = 0.01  # mean of the absolute samples
MUSIC_BELOW_SPEECH = 5.0  # dB
TRIED = 3  # one prompt in 3 is for the test
VALIDATED = 16  # one in 16 of the others is for validation


@dataclass(frozen=True)
class Piece:
    """A part of a prompt, perhaps reversed."""

    name: str
    prompt: str
    direction: str
    samples: np.ndarray


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("probe_data"), help="folder for manifests and audio")
    parser.add_argument("--corpus", type=Path, default=cache_folder() / "probe", help="folder for the decoded prompts")
    parser.add_argument("--install-speech", action="store_true", help="install the speech packages with apt")
    options = parser.parse_args(arguments)
    if options.install_speech:
        debian_speech.install(LANGUAGES)
    make(load_corpus(options.corpus), options.output)


def make(corpus: Corpus, output: Path) -> None:
    """Write all four manifests, and the audio of the pieces."""
    clips = [clip for clip in corpus.prompts if clip.duration >= SHORTEST]
    hours = sum(clip.duration for clip in clips) / 3600
    print(f"{corpus.kind}: {len(clips)} prompts, {hours:.1f} h")

    generator = random.Random(0)
    pieces = [piece for clip in clips if _number(clip) % TRIED == 0 for piece in _pieces(clip, generator)]
    music = [_samples(json.loads(line)["audio_filepath"]) for line in corpus.noise_manifest.read_text().splitlines()]
    noisy = [_with_music(piece, generator.choice(music), generator) for piece in pieces]
    for name, heard in (("direction", pieces), ("direction_in_music", noisy)):
        (output / name).mkdir(parents=True, exist_ok=True)
        _write(output / f"{name}.json", (_saved(piece, output / name) for piece in heard))

    others = [clip for clip in clips if _number(clip) % TRIED]
    for name, validated in (("speech", False), ("validation", True)):
        chosen = [clip for clip in others if (_number(clip) // TRIED % VALIDATED == 0) == validated]
        _write(output / f"{name}.json", (line for clip in chosen for line in _divided(clip)))


def _number(clip: Clip) -> int:
    """Return a number for a prompt that does not depend on its folder."""
    return zlib.crc32(Path(clip.audio_filepath).stem.encode())


def _pieces(clip: Clip, generator: random.Random) -> Iterator[Piece]:
    """Yield the pieces of a prompt that are not silent, each reversed or not."""
    samples, prompt = _samples(clip.audio_filepath), Path(clip.audio_filepath).stem
    length = round(PIECE * SAMPLE_RATE)
    for number in range(len(samples) // length):
        piece = samples[number * length :][:length]
        if np.abs(piece).mean() < SILENCE:
            continue
        backwards = generator.random() < 0.5
        direction = "backwards" if backwards else "forwards"
        yield Piece(f"{prompt}_{number}.wav", prompt, direction, piece[::-1] if backwards else piece)


def _with_music(piece: Piece, music: np.ndarray, generator: random.Random) -> Piece:
    """Add music, at half the level so that the sum is not clipped."""
    part = music[generator.randrange(len(music) - len(piece.samples)) :][: len(piece.samples)]
    level = np.sqrt(np.mean(piece.samples**2) / max(np.mean(part**2), 1e-9)) * 10 ** (-MUSIC_BELOW_SPEECH / 20)
    return dataclasses.replace(piece, samples=0.5 * (piece.samples + level * part))


def _saved(piece: Piece, folder: Path) -> dict[str, object]:
    path = folder.resolve() / piece.name
    soundfile.write(path, piece.samples, SAMPLE_RATE)
    return {"audio_filepath": str(path), "direction": piece.direction, "prompt": piece.prompt}


def _samples(path: str) -> np.ndarray:
    return soundfile.read(path, dtype="float32")[0]


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
