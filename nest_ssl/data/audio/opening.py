"""Audio files that may come from anywhere: what their headers claim is bounded before memory is taken for it.

Every audio file of the project is opened here. A header is easily forged: 2**36 samples, or one sample a second that
becomes 16,000 when it is resampled.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import soundfile

from nest_ssl.errors import AudioError, one_line
from nest_ssl.regular_file import check_regular

LOWEST_RATE, HIGHEST_RATE = 1000, 1_000_000  # Hz: below speech over a telephone, above recordings of ultrasound
MOST_SAMPLES = 2**28  # of all channels, in one piece: 1 GB as float32, 4.6 hours at 16 kHz
FRAMES_UNKNOWN = 2**62  # libsndfile's answer for a stream is near 2**63


def open_audio(path: str, content: bytes | None = None) -> soundfile.SoundFile:
    """A file that libsndfile reads and whose sample rate is possible; `content` is that of a file in memory."""
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
    """Stays where it is if told to go before its beginning, as damaged headers do; others print a traceback then."""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


def read_frames(file: soundfile.SoundFile, path: str, frames: int, dtype: str) -> np.ndarray:
    """Up to `frames` frames from where the file stands, -1: to its end; samples (S) or (S, C)."""
    with audio_errors(path):
        left = file.frames - file.tell() if file.seekable() else frames
        wanted = left if frames < 0 else min(frames, left)
        refuse_size(path, wanted, file.channels)
        samples = file.read(frames, dtype=dtype)
    return samples if 2 * len(samples) >= wanted else samples.copy()  # a claim that was not true keeps no memory


def refuse_size(path: str, frames: float, channels: int = 1) -> None:
    """Raise if that many samples are more than any utterance has."""
    if frames * channels > MOST_SAMPLES:
        claim = f"{frames:.0f} samples" if channels == 1 else f"{frames:.0f} samples of {channels} channels"
        advice = "give a `duration` if it is that long, or mend its header"
        raise AudioError(f"{path}: has {claim} by its header, more than {MOST_SAMPLES} at once; {advice}")


def as_frames(seconds: float, sample_rate: int) -> int:
    """Whole samples in so many seconds, rounded down; at most a number that no file reaches."""
    return int(min(seconds * sample_rate, FRAMES_UNKNOWN))


@contextmanager
def audio_errors(path: str) -> Iterator[None]:
    """What the system, libsndfile or NumPy says, as one line of ours."""
    try:
        yield
    except MemoryError as error:
        raise AudioError(f"{path}: cannot be read as audio: not enough memory ({one_line(error)})") from error
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # libsndfile's errors are RuntimeErrors
        if isinstance(error, OSError) and error.strerror:
            raise AudioError(f"{path}: {error.strerror}") from error
        reason = getattr(error, "error_string", str(error)).rstrip(".")  # without the name, which may be an address
        raise AudioError(f"{path}: cannot be read as audio: {reason}") from error
