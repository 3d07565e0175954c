"""Make the dummy corpus: synthetic speech, noise and manifests, the same bytes on every run."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import wave
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.random import RandomState

from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.data.paths import DUMMY_MARKER, DUMMY_SPLITS
from nest_ssl.data.synthesis import Voice, babble, coloured_noise, hum, music, speech
from nest_ssl.errors import NestError
from nest_ssl.folder_lock import lock_folder
from nest_ssl.printable import say

log = logging.getLogger(__name__)

SHORTEST, LONGEST = 1.0, 12.0  # seconds of an utterance
VOICES = 8


@dataclass(frozen=True)
class DummyCorpus:
    """The paths of the three manifests."""

    train_manifest: Path
    val_manifest: Path
    noise_manifest: Path


@dataclass(frozen=True)
class Recipe:
    """Everything that the audio depends on; a corpus of another recipe is replaced."""

    train: int
    val: int
    noise: int
    seed: int
    version: int = 1

    def audio(self, split: str, index: int) -> np.ndarray:
        """Return the samples of one file, at a peak of 1."""
        if split == "noise":
            return self._noise(index, RandomState([self.seed, 4, index]))
        draw = RandomState([self.seed, 2 if split == "train" else 3, index])
        seconds = SHORTEST + (LONGEST - SHORTEST) * draw.uniform() ** 2  # mostly short, as real corpora are
        return speech(Voice.number(index % VOICES, self.seed), round(seconds * SAMPLE_RATE), draw)

    def _noise(self, index: int, draw: RandomState) -> np.ndarray:
        """Return noise of four kinds in turn; four files are longer than any utterance, the next four shorter."""
        shortest, longest = (LONGEST + 3, LONGEST + 10) if index // 4 % 2 == 0 else (3, 8)  # seconds
        length = round(draw.uniform(shortest, longest) * SAMPLE_RATE)
        if index % 4 == 3:
            return babble(length, self.seed, draw)
        return (coloured_noise, hum, music)[index % 4](length, draw)


def make_dummy_corpus(
    folder: Path,
    *,
    train: int = 160,
    val: int = 24,
    noise: int = 8,
    seed: int = 0,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> DummyCorpus:
    """Make the corpus in `folder`, unless it is complete; call `progress` with the numbers of files done and in all.

    Files are written atomically, a manifest after its audio. Paths in manifests are relative to the manifest, so that
    the folder can be moved.
    """
    recipe = Recipe(train, val, noise, seed)
    manifests = {split: folder / f"{split}_manifest.json" for split in DUMMY_SPLITS}
    corpus = DummyCorpus(*manifests.values())
    if not force and _is_complete(folder, recipe, manifests):
        log.info("%s is complete already", folder)
        return corpus

    def tell(who: str) -> None:
        say(f"{folder}: waiting for {who}, which is making it", error=True)

    with lock_folder(folder, "wait for its end", waiting=tell):
        if force or not _is_complete(folder, recipe, manifests):  # another process may have made it meanwhile
            _make(folder, recipe, manifests, progress)
    return corpus


def _make(
    folder: Path, recipe: Recipe, manifests: dict[str, Path], progress: Callable[[int, int], None] | None
) -> None:
    for split, manifest in manifests.items():
        if manifest.exists() and not _is_ours(manifest, split):
            raise NestError(f"{manifest}: is not a manifest of dummy data and would be replaced; give another folder")
    (folder / DUMMY_MARKER).unlink(missing_ok=True)
    counts = {"train": recipe.train, "val": recipe.val, "noise": recipe.noise}
    done, total = 0, sum(counts.values())
    for split, count in counts.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        lines = []
        for index in range(count):
            audio = recipe.audio(split, index)
            name = f"{split}/{split}_{index:04d}.wav"
            _write_wav(folder / name, 0.6 * audio)
            lines.append(json.dumps({"audio_filepath": name, "duration": len(audio) / SAMPLE_RATE}) + "\n")
            done += 1
            if progress is not None:
                progress(done, total)
        _write(manifests[split], "".join(lines).encode())
    _write(folder / DUMMY_MARKER, json.dumps(asdict(recipe)).encode())
    log.info("%s: made %d + %d utterances and %d noises", folder, recipe.train, recipe.val, recipe.noise)


def _is_complete(folder: Path, recipe: Recipe, manifests: dict[str, Path]) -> bool:
    """Return whether the corpus of this recipe is complete."""
    try:
        if json.loads((folder / DUMMY_MARKER).read_text(encoding="utf-8")) != asdict(recipe):
            return False
        texts = [path.read_text(encoding="utf-8") for path in manifests.values()]
        entries = [json.loads(line) for text in texts for line in text.splitlines()]
        return all((folder / entry["audio_filepath"]).is_file() for entry in entries)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_ours(manifest: Path, split: str) -> bool:
    """Return whether a manifest names only audio that is made here."""
    try:
        names = [json.loads(line)["audio_filepath"] for line in manifest.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all(name == f"{split}/{split}_{index:04d}.wav" for index, name in enumerate(names))


def _write_wav(path: Path, samples: np.ndarray) -> None:
    """Write 16-bit PCM with the standard library, which writes the same bytes on every system."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.rint(samples * 32767).astype("<i2").tobytes())
    _write(path, content.getvalue())


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def show_progress(done: int, total: int) -> None:
    """Print progress as one line that is rewritten; without a terminal, only its last state."""
    if sys.stderr.isatty() or done == total:
        print(f"\rmaking audio: {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
