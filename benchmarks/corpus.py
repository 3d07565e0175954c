"""The audio that both sides train on: real speech if it is installed, else generated speech, and noise.

A measurement gets only as many clips as it uses. Their lengths are distributed as in the whole corpus, so a few steps
represent a long run. Both sides see the same batches in the same order.
"""

from __future__ import annotations

import json
import random
import wave
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import debian_speech
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.data.synthesis import Voice, babble, coloured_noise, hum, music, speech

SHORTEST = 1.0  # seconds, as in the stock configuration
PROMPT_LIMIT = 20.0  # seconds; longer clips are joined from prompts
LONGEST = 60.0  # seconds
LONG_CLIPS = 24
ONE_IN = 12  # one clip in 12 of the corpus "to 60 s" is longer than PROMPT_LIMIT
TAPE = 900.0  # seconds of speech without pauses, from which any length can be cut
GENERATED = 240


@dataclass(frozen=True)
class Clip:
    """A part of an audio file: a line of a manifest."""

    audio_filepath: str
    duration: float  # seconds
    offset: float = 0.0


@dataclass(frozen=True)
class Corpus:
    """Clips to choose from, shortest first, and the path of the noise manifest."""

    kind: str
    prompts: list[Clip]
    long_clips: list[Clip]
    tape: Clip
    noise_manifest: Path

    def clips_to(self, limit: float, count: int, order: int) -> list[Clip]:
        """Return `count` shuffled clips up to `limit` seconds, with the distribution of lengths of the whole corpus."""
        long_count = round(count / ONE_IN) if limit > PROMPT_LIMIT else 0
        prompts = [clip for clip in self.prompts if SHORTEST <= clip.duration <= min(limit, PROMPT_LIMIT)]
        chosen = [*_spread(prompts, count - long_count), *_spread(self.long_clips, long_count)]
        random.Random(order).shuffle(chosen)
        return chosen

    def prompts_of(self, clips: float | tuple[float, ...]) -> list[Clip]:
        """Return all clips up to a limit, for a side that makes its batches itself."""
        limit = clips if isinstance(clips, float) else max(clips)
        long_clips = self.long_clips if limit > PROMPT_LIMIT else []
        return [*(clip for clip in self.prompts if SHORTEST <= clip.duration <= limit), *long_clips]

    def cut(self, durations: Iterable[float]) -> list[Clip]:
        """Cut clips of exactly these lengths, one after the other, from the tape."""
        clips, offset = [], 0.0
        for duration in durations:
            if offset + duration > self.tape.duration:
                offset = 0.0
            clips.append(Clip(self.tape.audio_filepath, duration, offset))
            offset += duration
        return clips


def load_corpus(folder: Path, install_speech: bool = False) -> Corpus:
    """Load the corpus in `folder`; make it if it is not complete."""
    if install_speech and not debian_speech.is_installed():
        debian_speech.install()
    kind = "real speech" if debian_speech.is_installed() else "generated speech"
    place = folder / kind.replace(" ", "_")
    index = place / "corpus.json"
    if not index.is_file():
        place.mkdir(parents=True, exist_ok=True)
        _make(place, kind, index)
    content = json.loads(index.read_text(encoding="utf-8"))
    prompts, long_clips = ([Clip(**line) for line in content[name]] for name in ("prompts", "long_clips"))
    return Corpus(kind, prompts, long_clips, Clip(**content["tape"]), place / "noise.json")


def write_manifest(path: Path, clips: Iterable[Clip]) -> None:
    path.write_text("".join(json.dumps(asdict(clip)) + "\n" for clip in clips), encoding="utf-8")


def _spread(clips: Sequence[Clip], count: int) -> list[Clip]:
    """Return `count` of the sorted clips at even distances, which keeps the distribution of lengths."""
    return [clips[int((index + 0.5) / count * len(clips))] for index in range(count)]


def _make(folder: Path, kind: str, index: Path) -> None:
    """Make the corpus; the index is written last, so a corpus with an index is complete."""
    files, noises = debian_speech.decode(folder) if kind == "real speech" else _generate(folder)
    prompts = sorted((_clip(path) for path in files), key=lambda clip: clip.duration)
    samples = np.concatenate(
        [_read(Path(clip.audio_filepath)) for clip in random.Random(0).sample(prompts, len(prompts))]
    )
    samples = np.resize(samples, round(max(TAPE, len(samples) / SAMPLE_RATE) * SAMPLE_RATE))
    tape = _write(folder / "tape.wav", samples)
    lengths = np.linspace(PROMPT_LIMIT, LONGEST, LONG_CLIPS + 1)[1:]
    starts = np.linspace(0, len(samples) / SAMPLE_RATE - LONGEST, LONG_CLIPS)
    # long recordings are separate files, so these are, too
    long_clips = [
        _write(folder / f"long_{number:02d}.wav", samples[round(start * SAMPLE_RATE) :][: round(length * SAMPLE_RATE)])
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    write_manifest(folder / "noise.json", map(_clip, noises))
    content = {
        "prompts": [asdict(clip) for clip in prompts],
        "long_clips": [asdict(clip) for clip in long_clips],
        "tape": asdict(tape),
    }
    index.write_text(json.dumps(content), encoding="utf-8")


def _generate(folder: Path) -> tuple[list[Path], list[Path]]:
    """Generate speech-like clips (half below 2.5 s, one in twenty above 12 s) and four kinds of noise."""
    draw = np.random.RandomState(0)
    durations = np.clip(draw.lognormal(np.log(2.5), 1.0, GENERATED), SHORTEST, PROMPT_LIMIT)
    clips = [
        _write(
            folder / f"speech_{number:03d}.wav", 0.6 * speech(Voice.number(number % 8, 0), round(d * SAMPLE_RATE), draw)
        )
        for number, d in enumerate(durations)
    ]
    length = round((LONGEST + 15) * SAMPLE_RATE)
    signals = (coloured_noise(length, draw), hum(length, draw), music(length, draw), babble(length, 0, draw))
    noises = [_write(folder / f"noise_{number}.wav", 0.3 * signal) for number, signal in enumerate(signals)]
    return [Path(clip.audio_filepath) for clip in clips], [Path(clip.audio_filepath) for clip in noises]


def _clip(path: Path) -> Clip:
    with wave.open(str(path)) as file:
        return Clip(str(path.resolve()), file.getnframes() / file.getframerate())


def _read(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2") / 32768


def _write(path: Path, samples: np.ndarray) -> Clip:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.rint(samples * 32767).astype("<i2").tobytes())
    return _clip(path)
