"""Up to which frequency a recording holds sound: telephone speech in a file of 16 kHz ends at 4 kHz all the same."""

from __future__ import annotations

import math

import numpy as np

Hertz = float
NARROW = 0.75  # of the model's highest frequency; what ends below is narrow for it
SECONDS = 10.0  # of a file are enough to tell
_EDGES: tuple[Hertz, ...] = (4000, 5512.5)  # where speech ends that was sampled at 8000 and 11025 Hz
_ABOVE = 1.1  # a resampling filter needs some room to fall
_FRAME_SECONDS = 0.032
_MOST_FRAMES = 100
_LOUD = 1e-3  # of the loudest frame's energy: -30 dB. In quieter ones, rounding to 16 bits is heard above the edge
_FRAMES_THAT_TELL = 0.95  # quantile: a wide-band voice fills the upper band in some sounds (s, f), and never in vowels
_EMPTY = (
    1e-4  # of a frame's energy: of 142 prompts at 16 kHz, 1 has less there, and all have less once they were at 8 kHz
)


def measure_bandwidth(samples: np.ndarray, sample_rate: int) -> Hertz:
    """Return where sound ends in (S) samples: half of the rate, or the edge above which even the sharpest sounds stop.

    NaN where nothing can be told: too short, or all samples are the same.
    """
    length = round(_FRAME_SECONDS * sample_rate)
    count = min(len(samples), int(SECONDS * sample_rate)) // max(length, 1)
    if length < 16 or count == 0:
        return math.nan
    start = (len(samples) - count * length) // 2  # the middle: recordings begin and end with silence
    frames = samples[start : start + count * length].reshape(count, length).astype(np.float32)
    frames = (frames - frames.mean(axis=1, keepdims=True)) * np.hanning(length).astype(np.float32)
    energies = np.einsum("fl,fl->f", frames, frames)  # (frames, FRAME) -> (frames)
    loud = np.flatnonzero(energies > _LOUD * energies.max())
    if not len(loud):
        return math.nan
    some = loud[:: math.ceil(len(loud) / _MOST_FRAMES)]
    powers = np.square(np.abs(np.fft.rfft(frames[some], axis=1)))  # (frames, frequencies)
    frequencies = np.fft.rfftfreq(length, 1 / sample_rate)
    for edge in _EDGES:
        above = frequencies > _ABOVE * edge
        if above.any() and np.quantile(powers[:, above].sum(axis=1) / powers.sum(axis=1), _FRAMES_THAT_TELL) < _EMPTY:
            return edge
    return sample_rate / 2


def is_narrow(bandwidth: Hertz, model_rate: int) -> bool:
    """Whether a model of this rate would hear nothing in a good part of its band; not if that is unknown."""
    return bandwidth < NARROW * model_rate / 2
