"""Find audio without sound in the upper part of the model's band, such as telephone speech in a file of 16 kHz."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.data.audio import AudioFile
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.data.manifest import Manifest, line_of
from nest_ssl.data.manifest_lines import ManifestEntry, Seconds
from nest_ssl.data.problems import file_name
from nest_ssl.errors import AudioError

Hertz = float
_NARROW = 0.75  # of the model's highest frequency; audio that ends below is narrow for it
_SECONDS = 10.0  # of a file are measured
_EDGES: tuple[Hertz, ...] = (4000, 5512.5)  # the highest frequencies of audio once sampled at 8000 and 11025 Hz
_ABOVE = 1.1  # beyond the transition band of a resampling filter
_FRAME_SECONDS = 0.032
_MOST_FRAMES = 100
_LOUD = 1e-3  # of the loudest frame's energy: -30 dB. In quieter frames, 16-bit rounding noise is above the edge
_QUANTILE = 0.95  # of frames: a wide-band voice has energy in the upper band in some sounds (s, f), not in vowels
# Of a frame's energy: of 142 prompts at 16 kHz, one has less above an edge, and all have less once they were at 8 kHz
_EMPTY = 1e-4


@dataclass
class NarrowBand:
    """The result so far: `lines` of `measured` are narrow for a model of `model_rate`."""

    measured: int = 0
    lines: int = 0
    seconds: Seconds = 0.0
    example: str = ""  # manifest:line, or a file
    highest: Hertz = 0.0  # of the example
    model_rate: int = SAMPLE_RATE

    def add(self, bandwidth: Hertz, seconds: Seconds, place: str, model_rate: int | None = None) -> None:
        """Count one line."""
        self.measured += 1
        self.model_rate = model_rate or self.model_rate
        if is_narrow(bandwidth, self.model_rate):
            self.lines += 1
            self.seconds += seconds
            if not self.example:
                self.example, self.highest = place, bandwidth

    def __str__(self) -> str:
        return (
            f"{self.lines:,} of {self.measured:,} hold no sound above {self.highest:g} Hz or a little more, such as "
            f"{self.example}; a model of {self.model_rate} Hz hears up to {self.model_rate // 2} Hz"
        )


def estimate_narrow_band(manifests: Sequence[Manifest], model_rate: int, most: int) -> NarrowBand:
    """Measure some utterances, evenly spread over the manifests: always the same ones, without random numbers."""
    found, total = NarrowBand(model_rate=model_rate), sum(map(len, manifests))
    for index in np.unique(np.linspace(0, total - 1, num=min(most, total), dtype=int)).tolist():
        manifest, line = line_of(manifests, index)
        entry = manifest[line]
        try:
            bandwidth = _bandwidth(entry)
        except AudioError:  # reported when training reads it
            continue
        if not np.isnan(bandwidth):
            found.add(bandwidth, 0.0, file_name(entry))
    return found


def _bandwidth(entry: ManifestEntry) -> Hertz:
    duration = _SECONDS if entry.duration is None else min(_SECONDS, entry.duration)
    with AudioFile(file_name(entry)) as file:
        segment = file.segment(offset=entry.offset, duration=duration, channel_selector="average")
        return measure_bandwidth(segment.samples, segment.sample_rate)


def measure_bandwidth(samples: np.ndarray, sample_rate: int) -> Hertz:
    """Return the highest frequency with sound in (S) samples: half of the rate, or an edge without energy above it.

    NaN if it cannot be measured: the signal is too short, or all samples are equal.
    """
    length = round(_FRAME_SECONDS * sample_rate)
    count = min(len(samples), int(_SECONDS * sample_rate)) // max(length, 1)
    if length < 16 or count == 0:
        return math.nan
    start = (len(samples) - count * length) // 2  # the middle: recordings start and end with silence
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
        if above.any() and np.quantile(powers[:, above].sum(axis=1) / powers.sum(axis=1), _QUANTILE) < _EMPTY:
            return edge
    return sample_rate / 2


def is_narrow(bandwidth: Hertz, model_rate: int) -> bool:
    """Return whether a good part of a model's band has no sound; False if the bandwidth is unknown (NaN)."""
    return bandwidth < _NARROW * model_rate / 2
