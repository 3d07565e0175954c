"""How much of a data set holds no sound in the upper part of what the model hears, such as telephone speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.data.audio import AudioFile
from nest_ssl.data.audio.bandwidth import SECONDS, Hertz, is_narrow, measure_bandwidth
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.data.manifest import Manifest
from nest_ssl.data.manifest_lines import ManifestEntry, Seconds
from nest_ssl.data.problems import file_name
from nest_ssl.errors import AudioError


@dataclass
class NarrowBand:
    """What was found so far; `lines` of `measured` are narrow for a model of `model_rate`."""

    measured: int = 0
    lines: int = 0
    seconds: Seconds = 0.0
    example: str = ""  # manifest:line, or a file
    highest: Hertz = 0.0  # of the example
    model_rate: int = SAMPLE_RATE

    def add(self, bandwidth: Hertz, seconds: Seconds, place: str, model_rate: int | None = None) -> None:
        """Take note of one line."""
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
    """Measure some utterances, evenly spread over the manifests: the same ones each time, without random numbers."""
    found, total = NarrowBand(model_rate=model_rate), sum(map(len, manifests))
    ends = np.cumsum([len(manifest) for manifest in manifests])
    for index in np.unique(np.linspace(0, total - 1, num=min(most, total), dtype=int)):
        which = int(np.searchsorted(ends, index, side="right"))
        manifest = manifests[which]
        entry = manifest[int(index - ends[which] + len(manifest))]
        try:
            bandwidth = _bandwidth(entry)
        except AudioError:  # reported when it is its turn
            continue
        if not np.isnan(bandwidth):
            found.add(bandwidth, 0.0, file_name(entry))
    return found


def _bandwidth(entry: ManifestEntry) -> Hertz:
    duration = SECONDS if entry.duration is None else min(SECONDS, entry.duration)
    with AudioFile(file_name(entry)) as file:
        segment = file.segment(offset=entry.offset, duration=duration, channel_selector="average")
        return measure_bandwidth(segment.samples, segment.sample_rate)
