"""Trim leading and trailing silence, with the same result as librosa's `effects.trim`."""

from __future__ import annotations

import numpy as np

SILENCE_DB = -60.0  # relative to the loudest frame
FRAME_LENGTH = 2048
HOP_LENGTH = 512
LOWEST_POWER = 1e-10  # floor of the logarithm


def trim_silence(samples: np.ndarray) -> np.ndarray:
    """Return (S) or (S, C) from its first to its last frame that is louder than 60 dB below the loudest frame."""
    loudness = frame_loudness(samples)
    loud_frames = np.flatnonzero(loudness > SILENCE_DB)
    if loud_frames.size == 0:
        return samples[:0]
    return samples[loud_frames[0] * HOP_LENGTH : (loud_frames[-1] + 1) * HOP_LENGTH]


def frame_loudness(samples: np.ndarray) -> np.ndarray:
    """Return the level of each centred frame in dB relative to the loudest; of several channels, the loudest counts."""
    channels = samples.T if samples.ndim == 2 else samples[np.newaxis]  # (S, C) -> (C, S)
    padded = np.pad(channels, ((0, 0), (FRAME_LENGTH // 2, FRAME_LENGTH // 2)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME_LENGTH, axis=1)[:, ::HOP_LENGTH]
    amplitude = np.sqrt(np.mean(np.square(frames), axis=-1))  # (C, frames, FRAME_LENGTH) -> (C, frames)
    decibels = 10.0 * np.log10(np.maximum(LOWEST_POWER, np.square(amplitude)))
    decibels -= 10.0 * np.log10(np.maximum(LOWEST_POWER, amplitude.max() ** 2))
    return decibels.max(axis=0)
