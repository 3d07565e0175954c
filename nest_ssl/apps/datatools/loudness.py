"""Measure the loudness of a waveform, and its shares of clipping and of silence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Decibels = float
FULL_SCALE = 32767 / 32768  # the highest value of 16 bits; louder samples are clipped
FRAME_SECONDS = 0.025
# Speech spans 30 dB around its long-term level (ANSI S3.5, the Speech Intelligibility Index, counts 15 dB above and 15
# below); its loudest frame is at the upper end. Ten decibels of margin below the lower end are a pause in any voice.
SILENCE_DB = -40.0  # relative to the loudest frame


class Loudness(NamedTuple):
    """The loudness of one signal; 0 dBFS is a constant 1.0, so a sine at full scale has an RMS of -3.01 dBFS."""

    rms: Decibels  # -inf if all samples are 0
    clipped: float  # share of samples at full scale
    silence: float  # share of frames far below the loudest; 1 if all samples are 0


def measure_loudness(samples: np.ndarray, sample_rate: int) -> Loudness:
    """Measure (S) finite samples, at least one.

    Silence is measured in frames that do not overlap; an incomplete last frame counts only if it is the only one.
    """
    length = min(max(1, round(FRAME_SECONDS * sample_rate)), len(samples))
    whole = len(samples) // length * length
    frames = samples[:whole].reshape(-1, length)
    energies = np.einsum("fl,fl->f", frames, frames, dtype=np.float64)  # (frames, FRAME) -> (frames)
    energy = energies.sum() + np.square(samples[whole:], dtype=np.float64).sum()
    silent = energies <= energies.max() * 10 ** (SILENCE_DB / 10)
    return Loudness(
        rms=float(10 * np.log10(energy / len(samples))) if energy > 0 else -np.inf,
        clipped=float(np.mean(np.abs(samples) >= FULL_SCALE)),
        silence=float(np.mean(silent)),
    )
