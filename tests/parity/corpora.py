"""More corpora for the parity tests: tar files, and files and manifest lines that the dummy corpus lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from nest_ssl.apps.datatools.tar_writer import TarOptions, make_tarred_sets

# name, rate, channels, subtype, seconds; every file must be converted to at least one second of 16 kHz mono
FILES = (
    ("plain.wav", 16000, 1, "PCM_16", 3.1),
    ("telephone.wav", 8000, 1, "PCM_16", 2.7),
    ("studio.flac", 44100, 1, "PCM_24", 2.3),
    ("float.wav", 22050, 1, "FLOAT", 3.3),
    ("stereo.wav", 48000, 2, "PCM_16", 2.9),
    ("wide.wav", 16000, 2, "PCM_32", 3.7),
    ("short.wav", 16000, 1, "PCM_16", 0.4),
    ("long.wav", 16000, 1, "PCM_16", 9.0),
)


def make_mixed_corpus(folder: Path) -> None:
    """Write files of many rates, bit depths and channel counts, and manifest lines that use every optional field."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(7)
    lines: list[dict[str, Any]] = []
    for name, rate, channels, subtype, seconds in FILES:
        samples = _tone(generator, rate, channels, seconds)
        soundfile.write(folder / name, samples, rate, subtype=subtype)
        lines.append({"audio_filepath": name, "duration": len(samples) / rate, "lang": "en"})
    lines.append({"audio_filename": "long.wav", "duration": 2.5, "offset": 1.25})
    lines.append({"audio_filepath": "long.wav", "duration": 3.0, "offset": 5.5, "orig_sample_rate": 16000})
    _write(folder / "train_manifest.json", lines * 2)
    _write(folder / "more_manifest.json", lines[:4] * 2)
    noises = []
    for name, rate, seconds in (("hiss.wav", 16000, 12.0), ("hum.wav", 8000, 6.0), ("click.wav", 16000, 0.7)):
        soundfile.write(folder / name, 0.1 * generator.standard_normal(int(rate * seconds)), rate)
        noises.append({"audio_filepath": str(folder / name), "duration": seconds})
    _write(folder / "noise_manifest.json", noises)
    silent = []
    for name, seconds in (("silence.wav", 1.5), ("long_silence.wav", 7.0)):
        soundfile.write(folder / name, np.zeros(int(16000 * seconds)), 16000)
        silent.append({"audio_filepath": str(folder / name), "duration": seconds})
    _write(folder / "silent_manifest.json", silent)


def make_tarred_corpora(dummy: Path) -> None:
    """Write the validation utterances of the dummy corpus in tar files: in one set, and in two sets by duration."""
    manifest = dummy / "val_manifest.json"
    make_tarred_sets(manifest, dummy / "tarred", TarOptions(num_shards=4, shuffle=True, shuffle_seed=1))
    make_tarred_sets(manifest, dummy / "buckets", TarOptions(num_shards=2, max_duration=5.0), buckets=2)


def make_lhotse_corpus(folder: Path) -> None:
    """Write the mixed corpus in the formats that lhotse reads: shards of a manifest, a cut set, Shar folders."""
    from lhotse import CutSet, Recording

    lines = [json.loads(line) for line in (folder / "train_manifest.json").read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if "audio_filepath" in line]
    _write(folder / "lhotse_manifest.json", lines)
    for part in range(3):
        _write(folder / f"part_{part}.json", lines[part::3])
    recordings = [Recording.from_file(folder / name) for name, *_ in FILES]
    cuts = CutSet.from_cuts(recording.to_cut() for recording in recordings)
    cuts.to_file(folder / "cuts.jsonl.gz")
    for name in ("shar", "more_shar"):
        (folder / name).mkdir()
    cuts.to_shar(folder / "shar", fields={"recording": "flac"}, shard_size=3)
    cuts.subset(first=4).to_shar(folder / "more_shar", fields={"recording": "wav"}, shard_size=2)


def _tone(generator: np.random.Generator, rate: int, channels: int, seconds: float) -> np.ndarray:
    """Return a gliding harmonic sound between two almost silent parts, which trimming removes."""
    time = np.arange(int(rate * seconds)) / rate
    phase = 2 * np.pi * np.cumsum(generator.uniform(90, 250) * (1 + 0.2 * np.sin(5 * time))) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 12)) * ((time > 0.15 * seconds) & (time < 0.8 * seconds))
    samples = 0.1 * voice[:, None] + 1e-4 * generator.standard_normal((len(time), channels))
    return samples.astype(np.float32)


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
