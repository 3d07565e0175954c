"""The audio of one utterance as bytes in a tar file: copied, or cut out without loss, and decoded again."""

from __future__ import annotations

import io
from pathlib import Path

import soundfile

from nest_ssl.data.audio.opening import as_frames, audio_errors, open_audio, read_frames
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.tarred.members import audio_suffixes
from nest_ssl.errors import AudioError

# subtype -> dtype to read, and format and subtype to write without loss. Floats are not written as WAV: libsndfile
# writes the time of day into it.
_LOSSLESS = {
    "PCM_U8": ("int16", "WAV", "PCM_U8"),
    "PCM_16": ("int16", "WAV", "PCM_16"),
    "PCM_24": ("int32", "WAV", "PCM_24"),
    "PCM_32": ("int32", "WAV", "PCM_32"),
    "DOUBLE": ("float64", "AU", "DOUBLE"),
}
_DECODED = ("float32", "AU", "FLOAT")


def pack(path: str, offset: Seconds, duration: Seconds | None) -> tuple[bytes, str, Seconds]:
    """Return the content, suffix and duration of an audio file with the audio from `offset` on.

    A nearly whole file is copied unchanged; a part is cut out without loss.
    """
    with open_audio(path) as file, audio_errors(path):
        rate = file.samplerate
        start = as_frames(offset, rate)
        frames = max(0, file.frames - start)
        wanted = frames if duration is None else min(frames, as_frames(duration, rate))
        if wanted == 0:
            raise AudioError(f"{path}: has no samples at offset {offset:g} s")
        if start == 0 and frames - wanted < rate:  # durations are rounded, and training reads no more than the duration
            suffix = Path(path).suffix[1:].lower()
            known = suffix if suffix in audio_suffixes() else file.format.lower()
            return Path(path).read_bytes(), known, frames / rate
        dtype, format_, subtype = _LOSSLESS.get(file.subtype, _DECODED)
        if file.format == "FLAC" and subtype in ("PCM_16", "PCM_24"):
            format_ = "FLAC"
        if start:  # only if needed, as in training: after a seek, MP3 files give other samples
            file.seek(start)
        samples = read_frames(file, path, wanted, dtype)
        cut = io.BytesIO()
        soundfile.write(cut, samples, rate, format=format_, subtype=subtype)
    return cut.getvalue(), format_.lower(), wanted / rate


def decode(name: str, content: bytes) -> None:
    """Raise if the bytes are not an audio file that can be read to its end."""
    with open_audio(name, content) as file, audio_errors(name):
        frames = sum(len(block) for block in file.blocks(1 << 20, dtype="float32"))
        if frames == 0 or frames < file.frames:
            raise AudioError(f"{name}: has {frames} samples, its header says {file.frames}")
