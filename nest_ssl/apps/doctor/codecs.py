"""Which audio files can be read here: one of each kind is written and decoded."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import soundfile

from nest_ssl.apps.doctor.finding import Finding
from nest_ssl.data.audio import AudioSegment
from nest_ssl.errors import AudioError

RATE = 16000
_SECONDS = 0.5
KINDS = {  # name: (suffix, format, subtype) as libsndfile calls them
    "wav": ("wav", "WAV", "PCM_16"),
    "flac": ("flac", "FLAC", "PCM_16"),
    "ogg": ("ogg", "OGG", "VORBIS"),
    "mp3": ("mp3", "MP3", "MPEG_LAYER_III"),
    "opus": ("opus", "OGG", "OPUS"),
}
_NEEDED = ("wav", "flac")


def check_codecs() -> Finding:
    """Decode half a second of each kind."""
    found = decodable()
    missing = [kind for kind in KINDS if kind not in found]
    reads = f"reads {', '.join(found)} (libsndfile {soundfile.__libsndfile_version__})"
    if not missing:
        return Finding("audio", "ok", reads)
    state = "problem" if any(kind in missing for kind in _NEEDED) else "warning"
    return Finding(
        *("audio", state, f"{reads}; not {', '.join(missing)}"),  # type: ignore[arg-type]
        "Update soundfile (pip install -U soundfile), or convert such files to flac",
    )


def decodable(kinds: dict[str, tuple[str, str, str]] | None = None) -> list[str]:
    """The kinds whose sound comes back as it was written, at least nearly."""
    samples = 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(RATE * _SECONDS)) / RATE)
    with tempfile.TemporaryDirectory(prefix="nest_ssl-") as folder:
        return [kind for kind, how in (kinds or KINDS).items() if _comes_back(samples, Path(folder), how)]


def _comes_back(samples: np.ndarray, folder: Path, how: tuple[str, str, str]) -> bool:
    suffix, form, subtype = how
    path = folder / f"sound.{suffix}"
    try:
        soundfile.write(path, samples, RATE, format=form, subtype=subtype)
        read = AudioSegment.from_file(str(path), target_sr=RATE).samples
    except (AudioError, soundfile.SoundFileError, RuntimeError, ValueError, TypeError):  # what old versions lack
        return False
    loudness = float(np.sqrt(np.mean(samples**2)))
    return abs(len(read) - len(samples)) < RATE / 4 and abs(float(np.sqrt(np.mean(read**2))) / loudness - 1) < 0.25
