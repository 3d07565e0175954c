"""Read the samples of one manifest entry, and find what is suspicious about them."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np

from nest_ssl.data.audio import AudioFile, AudioSegment, ChannelSelector
from nest_ssl.data.audio.opening import FRAMES_UNKNOWN
from nest_ssl.data.audio.segment import trim_silence
from nest_ssl.data.manifest_lines import ManifestEntry, Seconds
from nest_ssl.data.problems import LENGTH_TOLERANCE, Problem, file_name, find_suspicious
from nest_ssl.errors import AudioError


def read_entry(
    entry: ManifestEntry,
    *,
    target_sr: int | None = None,
    int_values: bool = False,
    trim: bool = False,
    channel_selector: ChannelSelector = None,
    tolerance: Seconds = LENGTH_TOLERANCE,
    file: AudioFile | None = None,
) -> tuple[np.ndarray, list[Problem]]:
    """Return the samples (S) of an entry and its suspicious problems; raise AudioError if there are no samples.

    `file` is the entry's file, if it is already open.
    """
    part = (target_sr, int_values, entry.offset, entry.duration)
    file_seconds = math.nan
    if isinstance(entry.audio_file, str):
        with AudioFile(entry.audio_file) if file is None else nullcontext(file) as opened:
            file_seconds = seconds_in_file(opened)
            check_offset(entry, file_seconds)
            segment = opened.segment(*part, channel_selector)
    else:
        segment = AudioSegment.from_file(entry.audio_file, *part, channel_selector=channel_selector)
    samples = segment.samples
    if len(samples) == 0:
        raise AudioError(f"{file_name(entry)}: has no samples at offset {entry.offset:g} s", "empty")
    if samples.ndim > 1:
        raise AudioError(f"{file_name(entry)}: `channel_selector` must leave one channel", "channels")
    found = find_suspicious(entry, samples, len(samples) / segment.sample_rate, file_seconds, tolerance)
    return trim_silence(samples) if trim else samples, found


def seconds_in_file(file: AudioFile) -> Seconds:
    """Return the duration of the whole file; NaN if the header does not give it."""
    return file.frames / file.sample_rate if 0 <= file.frames < FRAMES_UNKNOWN else math.nan


def check_offset(entry: ManifestEntry, file_seconds: Seconds) -> None:
    """Raise if a part begins after the end of its file, which libsndfile reports as an internal error."""
    if entry.offset > file_seconds:
        reason = f"has no samples at offset {entry.offset:g} s: it ends at {file_seconds:.3f} s"
        raise AudioError(f"{file_name(entry)}: {reason}", "empty")
