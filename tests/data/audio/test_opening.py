"""Sizes in headers are checked before memory is allocated."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from nest_ssl.data.audio import AudioFile, AudioSegment, opening
from nest_ssl.data.audio.opening import as_frames, open_audio
from nest_ssl.errors import AudioError

RATE = 16000
SAMPLES = (3000 * np.random.default_rng(1).standard_normal(2000)).astype(np.int16)
FORMATS = ("WAV", "FLAC", "OGG", "AIFF", "CAF", "W64", "MP3")


def encoded(form: str) -> bytes:
    content = io.BytesIO()
    soundfile.write(content, SAMPLES, RATE, format=form)
    return content.getvalue()


def wav(rate: int = RATE, channels: int = 1) -> bytes:
    content = bytearray(encoded("WAV"))
    struct.pack_into("<HI", content, 22, channels, rate)
    return bytes(content)


def flac(rate: int = RATE, frames: int = len(SAMPLES)) -> bytes:
    """Return a header with fields of 20 bits for the rate, 8 for channels and depth, 36 for the length."""
    content = bytearray(encoded("FLAC"))
    old = int.from_bytes(content[18:26], "big")
    content[18:26] = (rate << 44 | old & (0xFF << 36) | frames).to_bytes(8, "big")
    return bytes(content)


def segment(content: bytes, **options: float | None) -> AudioSegment:
    with AudioFile("a", content) as file:
        return file.segment(RATE, channel_selector="average", **options)  # type: ignore[arg-type]


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Fail if NumPy allocated more than 64 MB."""
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 * 2**20


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("rate", [1, 999, 1_000_001, 2_000_000_000])
def test_an_impossible_sample_rate_is_refused(rate: int) -> None:
    with pytest.raises(AudioError, match=rf"^a: its header says {rate} Hz; expected 1000 to 1000000 Hz"):
        segment(wav(rate))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("content", [wav(0), wav(4_000_000_000), wav(channels=65535), flac(rate=1)])
def test_other_impossible_headers_are_errors_too(content: bytes) -> None:
    with pytest.raises(AudioError):
        segment(content)


@pytest.mark.parametrize("rate", [1000, 8000, 44100, 192000, 1_000_000])
def test_a_possible_sample_rate_is_read(rate: int) -> None:
    assert len(segment(wav(rate)).samples) == -(-len(SAMPLES) * RATE // rate)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("frames", [2**36 - 1, 2**29, 0])  # 0 means unknown
def test_a_stated_length_beyond_the_end_is_refused(frames: int) -> None:
    with pytest.raises(AudioError, match=r"^a: has [0-9]+ samples by its header, more than 268435456 at once"):
        segment(flac(frames=frames))
    with pytest.raises(AudioError, match=r"^a: has [0-9]+ samples"):
        segment(flac(frames=frames), duration=1e308)
    with AudioFile("a", flac(frames=frames)) as file, pytest.raises(AudioError, match=r"^a: has [0-9]+ samples"):
        file.integers()


@pytest.mark.usefixtures("little_memory")
def test_a_stated_part_of_such_a_file_is_read() -> None:
    assert len(segment(flac(frames=2**36 - 1), duration=0.05).samples) == 800


def test_the_size_after_resampling_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MOST_SAMPLES", 2 * len(SAMPLES))
    assert len(segment(wav(RATE // 2)).samples) == 2 * len(SAMPLES)
    with pytest.raises(AudioError, match=r"^a: has 8000 samples"):
        segment(wav(RATE // 4))


def test_the_limit_includes_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MOST_SAMPLES", len(SAMPLES) - 1)
    with pytest.raises(AudioError, match=r"^a: has 500 samples of 4 channels by its header"):
        segment(wav(channels=4))


@pytest.mark.parametrize("seconds", [1e308, 1e300, 1e15])
@pytest.mark.parametrize("form", ["WAV", "FLAC"])
def test_huge_offsets_are_errors_and_huge_durations_mean_to_the_end(form: str, seconds: float) -> None:
    with pytest.raises(AudioError):
        segment(encoded(form), offset=seconds)
    assert len(segment(encoded(form), duration=seconds).samples) == len(SAMPLES)
    assert as_frames(seconds, RATE) >= 2**53


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_causes_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.wav")
    with pytest.raises(AudioError, match=r"a\.wav: is not a regular file \(a named pipe\)"):
        AudioSegment.from_file(str(tmp_path / "a.wav"))
    with pytest.raises(AudioError, match=r"a\.wav: is not a regular file \(a named pipe\)"):
        AudioSegment.from_file([str(tmp_path / "a.wav")] * 2)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices as files here")
def test_a_device_is_refused() -> None:
    with pytest.raises(AudioError, match=r"^/dev/zero: is not a regular file \(a device\)"):
        open_audio("/dev/zero")


@pytest.mark.filterwarnings("error")  # such as a traceback in a callback of libsndfile
@pytest.mark.parametrize("form", FORMATS)
def test_damaged_headers_give_audio_or_an_error(form: str) -> None:
    good = encoded(form)

    @settings(max_examples=40, deadline=None)
    @given(
        changes=st.lists(st.tuples(st.integers(0, 127), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])), min_size=1),
        cut=st.one_of(st.none(), st.integers(0, len(good))),
    )
    def damaged(changes: list[tuple[int, int]], cut: int | None) -> None:
        content = bytearray(good)
        for place, value in changes:
            content[place % len(content)] = value
        with contextlib.suppress(AudioError):
            samples = segment(bytes(content[:cut])).samples
            assert samples.ndim == 1
            assert len(samples) <= 32 * len(good) * RATE // opening.LOWEST_RATE

    tracemalloc.start()
    try:
        damaged()
        assert tracemalloc.get_traced_memory()[1] < 2 * 4 * opening.MOST_SAMPLES
    finally:
        tracemalloc.stop()
