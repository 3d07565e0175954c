"""Read audio files of any rate, bit depth and number of channels as waveforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import soundfile

from nest_ssl.data.audio.opening import as_frames, audio_errors, open_audio, read_frames, refuse_size
from nest_ssl.data.audio.sample_rate import resample
from nest_ssl.errors import AudioError

# One channel, several, or "average"; None: the file must have one channel
ChannelSelector = int | Sequence[int] | str | None
_INTEGERS = frozenset(("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32"))  # these cannot hold NaN
# of `trim_silence`, librosa's defaults
_SILENCE_DB = -60.0  # relative to the loudest frame
_FRAME_LENGTH, _HOP_LENGTH = 2048, 512
_LOWEST_POWER = 1e-10  # floor of the logarithm


@dataclass(frozen=True, eq=False)
class AudioSegment:
    """A waveform: float32 samples, (S) for one channel or (S, C) for several, and their rate in Hz."""

    samples: np.ndarray
    sample_rate: int

    @classmethod
    def from_file(
        cls,
        path: str | Sequence[str],
        target_sr: int | None = None,
        int_values: bool = False,
        offset: float = 0.0,
        duration: float | None = None,
        trim: bool = False,
        channel_selector: ChannelSelector = None,
    ) -> AudioSegment:
        """Read `duration` seconds (None: to the end) from `offset`; several files are the channels of one signal.

        `int_values` reads 32-bit integers and scales them to [-1, 1): the same numbers for PCM files, but libsndfile
        truncates files of floats to integers. As in NeMo, channels are selected first, then resampled, then trimmed.
        """
        if isinstance(path, str):
            with AudioFile(path) as file:
                segment = file.segment(target_sr, int_values, offset, duration, channel_selector)
        else:
            joined = _read_channel_files(path, target_sr, offset, duration, int_values)
            selected = _select_channels(joined.samples, channel_selector, path[0])
            segment = replace(joined, samples=np.ascontiguousarray(selected))
        return replace(segment, samples=trim_silence(segment.samples)) if trim else segment


class AudioFile:
    """An audio file that is opened at the first read and stays open: opening costs as much as reading seconds of it.

    `content` is that of a file in memory; `path` is then only a name for messages.
    """

    def __init__(self, path: str, content: bytes | None = None) -> None:
        self.path = path
        self._content = content
        self._was_read = False

    def __enter__(self) -> AudioFile:
        return self

    def __exit__(self, *exception: object) -> None:
        if "_file" in vars(self):
            self._file.close()

    @cached_property
    def _file(self) -> soundfile.SoundFile:
        return open_audio(self.path, self._content)

    def segment(
        self,
        target_sr: int | None = None,
        int_values: bool = False,
        offset: float = 0.0,
        duration: float | None = None,
        channel_selector: ChannelSelector = None,
    ) -> AudioSegment:
        """Read one part of the file, as `AudioSegment.from_file` does."""
        samples = _select_channels(self._read(offset, duration, int_values), channel_selector, self.path)
        if self._file.subtype not in _INTEGERS and not np.isfinite(samples).all():
            raise AudioError(f"{self.path}: holds NaN or infinite samples", "not_finite")
        rate = self._file.samplerate
        if target_sr is not None:
            channels = 1 if samples.ndim == 1 else samples.shape[1]
            refuse_size(self.path, len(samples) * (target_sr / rate), channels)
            samples, rate = resample(samples, rate, target_sr), target_sr
        return AudioSegment(np.ascontiguousarray(samples), rate)

    @property
    def frames(self) -> int:
        """Samples of one channel, at the file's own rate."""
        return self._file.frames

    @property
    def sample_rate(self) -> int:
        """The file's own rate in Hz."""
        return self._file.samplerate

    @property
    def channels(self) -> int:
        return self._file.channels

    @property
    def format(self) -> str:
        """Container and encoding in libsndfile's words, such as `WAV PCM_16`."""
        return f"{self._file.format} {self._file.subtype}"

    def is_16_bit(self, sample_rate: int) -> bool:
        """Return whether the file is one channel of 16-bit integers at this rate, as `integers` requires."""
        file = self._file
        return file.subtype == "PCM_16" and file.channels == 1 and file.samplerate == sample_rate

    def integers(self, start: int = 0, frames: int = -1) -> np.ndarray:
        """Read a part as 16-bit integers (-1: to the end), at half the cost of a segment."""
        with audio_errors(self.path):
            self._file.seek(start)
            self._was_read = True
            frames = self._file.frames - start if frames < 0 else frames
            refuse_size(self.path, frames)
            return self._file.read(out=np.empty(frames, dtype=np.int16))  # twice as fast as soundfile's own array

    def _read(self, offset: float, duration: float | None, int_values: bool) -> np.ndarray:
        """Read samples as float32, (S) or (S, C)."""
        rate = self._file.samplerate
        frames = -1 if duration is None else as_frames(duration, rate)
        # For 16 bits, NumPy's conversion to float is three times as fast as libsndfile's, with the same result
        dtype = "int16" if self._file.subtype == "PCM_16" else "int32" if int_values else "float32"
        with audio_errors(self.path):
            if offset > 0 or self._was_read:  # only if needed: some files cannot seek
                self._file.seek(as_frames(offset, rate))
            self._was_read = True
        return to_float(read_frames(self._file, self.path, frames, dtype))


def to_float(samples: np.ndarray) -> np.ndarray:
    """Scale 16-bit or 32-bit integers to float32 in [-1, 1); return floats unchanged."""
    if samples.dtype == np.float32:
        return samples
    scaled = samples.astype(np.float32)
    scaled *= np.float32(2.0 ** -(8 * samples.itemsize - 1))
    return scaled


def _read_channel_files(
    paths: Sequence[str], target_sr: int | None, offset: float, duration: float | None, int_values: bool
) -> AudioSegment:
    """Join one-channel files into (S, C); each is resampled separately, so that their rates may differ."""
    channels = [AudioSegment.from_file(path, target_sr, int_values, offset, duration) for path in paths]
    first = channels[0]
    for path, channel in zip(paths, channels, strict=True):
        if channel.sample_rate != first.sample_rate or len(channel.samples) != len(first.samples):
            raise AudioError(f"{path}: differs in rate or length from {paths[0]}; files of one signal must match")
    return replace(first, samples=np.stack([channel.samples for channel in channels], axis=1))  # C x (S) -> (S, C)


def _select_channels(samples: np.ndarray, selector: ChannelSelector, path: str) -> np.ndarray:
    """Select channels of (S) or (S, C); return a single channel as (S)."""
    if samples.ndim == 1:
        if selector in (None, 0, "average"):
            return samples
        samples = samples[:, np.newaxis]  # (S) -> (S, 1)
    channels = samples.shape[1]
    if selector is None:
        needed = "set `channel_selector` to a channel number or `average`"
        raise AudioError(f"{path}: has {channels} channels; {needed}", "channels")
    if selector == "average":
        return np.mean(samples, axis=-1)
    named: Sequence[int | str] = [selector] if isinstance(selector, int) else selector
    wanted = [channel for channel in named if isinstance(channel, int) and -channels <= channel < channels]
    if not wanted or len(wanted) < len(named):
        message = f"{path}: has {channels} channel(s); `channel_selector` {selector!r} is not among them"
        raise AudioError(message, "channels")
    return samples[:, wanted[0]] if len(wanted) == 1 else samples[:, wanted]


def trim_silence(samples: np.ndarray) -> np.ndarray:
    """Return (S) or (S, C) from its first to its last frame within 60 dB of the loudest, as librosa does."""
    loudness = frame_loudness(samples)
    loud_frames = np.flatnonzero(loudness > _SILENCE_DB)
    if loud_frames.size == 0:
        return samples[:0]
    return samples[loud_frames[0] * _HOP_LENGTH : (loud_frames[-1] + 1) * _HOP_LENGTH]


def frame_loudness(samples: np.ndarray) -> np.ndarray:
    """Return the level of each centred frame in dB relative to the loudest; of several channels, the loudest counts."""
    channels = samples.T if samples.ndim == 2 else samples[np.newaxis]  # (S, C) -> (C, S)
    padded = np.pad(channels, ((0, 0), (_FRAME_LENGTH // 2, _FRAME_LENGTH // 2)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME_LENGTH, axis=1)[:, ::_HOP_LENGTH]
    amplitude = np.sqrt(np.mean(np.square(frames), axis=-1))  # (C, frames, _FRAME_LENGTH) -> (C, frames)
    decibels = 10.0 * np.log10(np.maximum(_LOWEST_POWER, np.square(amplitude)))
    decibels -= 10.0 * np.log10(np.maximum(_LOWEST_POWER, amplitude.max() ** 2))
    return decibels.max(axis=0)
