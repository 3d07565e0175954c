"""Open audio files from untrusted sources: sizes in their headers are checked before memory is allocated.

Every audio file is opened here. A forged header may claim 2**36 samples, or a rate of 1 Hz, at which resampling makes
16,000 samples of one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import soundfile

from nest_ssl.errors import AudioError, one_line
from nest_ssl.regular_file import check_regular

LOWEST_RATE, HIGHEST_RATE = 1000, 1_000_000  # Hz: below telephone speech, above ultrasound
MOST_SAMPLES = 2**28  # of all channels, in one piece: 1 GB as float32, 4.6 hours at 16 kHz
FRAMES_UNKNOWN = 2**62  # for a stream, libsndfile returns nearly 2**63


def open_audio(path: str, content: bytes | None = None) -> soundfile.SoundFile:
    """Open a file with libsndfile and check its sample rate; `content` is that of a file in memory."""
    with audio_errors(path):
        if content is None:
            check_regular(path)
        file = soundfile.SoundFile(path if content is None else _InMemory(content))
    if not LOWEST_RATE <= file.samplerate <= HIGHEST_RATE:
        file.close()
        expected = f"expected {LOWEST_RATE} to {HIGHEST_RATE} Hz"
        raise AudioError(f"{path}: its header says {file.samplerate} Hz; {expected}")
    return file


class _InMemory(io.BytesIO):
    """A file in memory that ignores seeks before its start: damaged headers cause these, and tracebacks with them."""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


def read_frames(file: soundfile.SoundFile, path: str, frames: int, dtype: str) -> np.ndarray:
    """Read up to `frames` frames from the current position, -1: to the end; return samples (S) or (S, C)."""
    with audio_errors(path):
        left = file.frames - file.tell() if file.seekable() else frames
        wanted = left if frames < 0 else min(frames, left)
        refuse_size(path, wanted, file.channels)
        samples = file.read(frames, dtype=dtype)
    return samples if 2 * len(samples) >= wanted else samples.copy()  # free the memory that a false header reserved


def refuse_size(path: str, frames: float, channels: int = 1) -> None:
    """Raise if there are more samples than any utterance has."""
    if frames * channels > MOST_SAMPLES:
        claim = f"{frames:.0f} samples" if channels == 1 else f"{frames:.0f} samples of {channels} channels"
        advice = "give a `duration` if it is that long, or repair its header"
        raise AudioError(f"{path}: has {claim} by its header, more than {MOST_SAMPLES} at once; {advice}")


def as_frames(seconds: float, sample_rate: int) -> int:
    """Return the whole samples in so many seconds; the result is limited to a number that no file reaches."""
    return int(min(seconds * sample_rate, FRAMES_UNKNOWN))


@contextmanager
def audio_errors(path: str) -> Iterator[None]:
    """Turn errors of the system, libsndfile and NumPy into an AudioError of one line."""
    try:
        yield
    except MemoryError as error:
        raise AudioError(f"{path}: cannot be read as audio: not enough memory ({one_line(error)})") from error
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # libsndfile's errors are RuntimeErrors
        if isinstance(error, OSError) and error.strerror:
            raise AudioError(f"{path}: {error.strerror}") from error
        reason = getattr(error, "error_string", str(error)).rstrip(".")  # without the name: it may be an address
        raise AudioError(f"{path}: cannot be read as audio: {reason}") from error
