"""One waveform in memory, and how a file becomes one: any rate, bit depth and channel count that soundfile reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import soundfile

from nest_ssl.audio.resample import resample
from nest_ssl.audio.silence import trim_silence
from nest_ssl.errors import AudioError

ChannelSelector = int | Sequence[int] | str | None  # one channel, several, "average"; None: the file has but one


@dataclass(frozen=True, eq=False)
class AudioSegment:
    """Samples as float32, (S) for one channel or (S, C) for several, and their rate in Hz."""

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
        """Read `duration` seconds (None: to the end) from `offset` on; several files are the channels of one signal.

        `int_values` reads 32-bit integers and scales them to [-1, 1): the same numbers for PCM files, but files that
        hold floats are truncated to integers by libsndfile. The order is NeMo's: channels, rate, silence.
        """
        if isinstance(path, str):
            name = path
            samples, sample_rate = _read(path, offset, duration, int_values)
        else:
            name = path[0]
            samples, sample_rate = _read_channel_files(path, target_sr, offset, duration, int_values)
        samples = _select_channels(samples, channel_selector, name)
        if not np.isfinite(samples).all():
            raise AudioError(f"{name}: holds NaN or infinite samples")
        if target_sr is not None:
            samples, sample_rate = resample(samples, sample_rate, target_sr), target_sr
        if trim:
            samples = trim_silence(samples)
        return cls(np.ascontiguousarray(samples), sample_rate)


def _read(path: str, offset: float, duration: float | None, int_values: bool) -> tuple[np.ndarray, int]:
    """Samples as float32, (S) or (S, C), and their rate."""
    try:
        with soundfile.SoundFile(path) as file:
            rate = file.samplerate
            if offset > 0:
                file.seek(int(offset * rate))
            frames = -1 if duration is None else int(duration * rate)
            samples = file.read(frames, dtype="int32" if int_values else "float32")
    except (OSError, RuntimeError, TypeError) as error:  # libsndfile's errors are RuntimeErrors
        reason = str(error).removeprefix(f"Error opening {path!r}: ").rstrip(".")
        raise AudioError(f"{path}: cannot be read as audio: {reason}") from error
    if int_values:
        samples = samples.astype(np.float32) * np.float32(2.0**-31)
    return samples, rate


def _read_channel_files(
    paths: Sequence[str], target_sr: int | None, offset: float, duration: float | None, int_values: bool
) -> tuple[np.ndarray, int]:
    """Join one-channel files into (S, C); each is resampled by itself, so their own rates may differ."""
    channels = [AudioSegment.from_file(path, target_sr, int_values, offset, duration) for path in paths]
    first = channels[0]
    for path, channel in zip(paths, channels, strict=True):
        if channel.sample_rate != first.sample_rate or len(channel.samples) != len(first.samples):
            raise AudioError(f"{path}: differs in rate or length from {paths[0]}; files of one signal must match")
    return np.stack([channel.samples for channel in channels], axis=1), first.sample_rate  # C x (S) -> (S, C)


def _select_channels(samples: np.ndarray, selector: ChannelSelector, path: str) -> np.ndarray:
    """Reduce (S) or (S, C) to what the selector names; a single channel comes out as (S)."""
    if samples.ndim == 1:
        if selector in (None, 0, "average"):
            return samples
        samples = samples[:, np.newaxis]  # (S) -> (S, 1)
    channels = samples.shape[1]
    if selector is None:
        raise AudioError(f"{path}: has {channels} channels; set `channel_selector` to a channel number or `average`")
    if selector == "average":
        return np.mean(samples, axis=-1)
    named: Sequence[int | str] = [selector] if isinstance(selector, int) else selector
    wanted = [channel for channel in named if isinstance(channel, int) and -channels <= channel < channels]
    if not wanted or len(wanted) < len(named):
        raise AudioError(f"{path}: has {channels} channel(s); `channel_selector` {selector!r} is not among them")
    return samples[:, wanted[0]] if len(wanted) == 1 else samples[:, wanted]
