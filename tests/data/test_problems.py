from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nest_ssl.data.audio import AudioSegment
from nest_ssl.data.audio.entry import read_entry
from nest_ssl.data.manifest import load_manifest
from nest_ssl.data.manifest_lines import ManifestEntry
from nest_ssl.data.problems import Problem, ProblemWarnings, broken, count_by_kind
from nest_ssl.errors import AudioError

RATE = 16000
SOUND = np.sin(np.arange(2 * RATE) / 10)

Entry = Callable[..., ManifestEntry]


@pytest.fixture
def entry(write_audio: Callable, write_manifest: Callable) -> Entry:
    """Return the entry of one file with these samples and these fields."""

    def entry(samples: np.ndarray = SOUND, rate: int = RATE, subtype: str = "FLOAT", **line: Any) -> ManifestEntry:
        row = write_audio("a.wav", samples, rate, subtype)
        return load_manifest([write_manifest([{**row, **line}])])[0]

    return entry


def kinds(entry: ManifestEntry, **options: Any) -> list[str]:
    """Return all problems that reading finds, whether or not the audio can be used."""
    try:
        return [problem.kind for problem in read_entry(entry, **options)[1]]
    except AudioError as error:
        found = broken(entry, error, "skipped")
        assert found.message.startswith(found.file)
        assert found.message.endswith(f"({entry.line})")
        return [found.kind]


def test_the_samples_equal_those_of_the_file(entry: Entry) -> None:
    part = entry(rate=22050, offset=0.5, duration=1.0)
    for options in ({}, {"target_sr": RATE}, {"target_sr": RATE, "trim": True}, {"int_values": True}):
        expected = AudioSegment.from_file(part.audio_file, offset=0.5, duration=1.0, **options)  # type: ignore[arg-type]
        samples, problems = read_entry(part, **options)  # type: ignore[arg-type]
        np.testing.assert_array_equal(samples, expected.samples)
        assert problems == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_a_problem(entry: Entry, value: float) -> None:
    samples = SOUND.copy()
    samples[-1] = value
    assert kinds(entry(samples)) == ["not_finite"]
    assert kinds(entry(samples, offset=0, duration=1.0)) == []  # the part that is used has finite samples


@pytest.mark.parametrize("value", [0.0, 0.25, -1.0])
@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_only_constant_samples_are_silence(entry: Entry, value: float, subtype: str) -> None:
    samples = np.full(RATE, value)
    assert kinds(entry(samples, subtype=subtype)) == ["silent"]
    samples[-1] = 0.5
    assert kinds(entry(samples, subtype=subtype)) == []


@pytest.mark.parametrize(("said", "found"), [(2.2, ["shorter"]), (2.05, []), (2.0, []), (1.95, []), (1.8, ["longer"])])
def test_lengths_within_the_tolerance_are_right(entry: Entry, said: float, found: list[str]) -> None:
    assert kinds(entry(duration=said)) == found
    assert kinds(entry(duration=said), trim=True, target_sr=8000) == found
    assert kinds(entry(duration=said), tolerance=0.5) == []


def test_a_part_may_end_before_its_file_does_but_not_after(entry: Entry) -> None:
    assert kinds(entry(offset=0.0, duration=1.0)) == []
    assert kinds(entry(offset=0.5, duration=1.0)) == []
    assert kinds(entry(offset=1.5, duration=1.0)) == ["shorter"]
    assert kinds(entry(duration=None)) == []


@pytest.mark.parametrize("offset", [2.0, 2.1, 99.0])
def test_a_part_after_the_end_is_empty(entry: Entry, offset: float) -> None:
    assert kinds(entry(offset=offset, duration=1.0)) == ["empty"]


def test_channels_need_a_selector(entry: Entry) -> None:
    stereo = entry(np.stack((SOUND, SOUND), axis=1))
    assert kinds(stereo) == kinds(stereo, channel_selector=[0, 1]) == kinds(stereo, channel_selector=2) == ["channels"]
    assert kinds(stereo, channel_selector="average") == kinds(stereo, channel_selector=1) == []


@pytest.mark.parametrize("name", ["nowhere.wav", "no\ud800where.wav"])
def test_a_missing_file_is_a_problem(name: str) -> None:
    assert kinds(ManifestEntry(name, 1.0, 0.0, "m.json:1")) == ["unreadable"]


def test_a_file_that_is_not_audio_is_a_problem(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"RIFF no audio", bytes(1000))):
        (tmp_path / f"{number}.wav").write_bytes(content)
        assert kinds(ManifestEntry(str(tmp_path / f"{number}.wav"), 1.0, 0.0, "m.json:1")) == ["unreadable"]


def test_several_files_are_read_as_channels(write_audio: Callable, write_manifest: Callable, tmp_path: Path) -> None:
    names = [write_audio(name, SOUND)["audio_filepath"] for name in ("a.wav", "b.wav")]
    several = load_manifest([write_manifest([{"audio_filepath": names, "duration": 2.5}])])[0]
    several = ManifestEntry([str(tmp_path / name) for name in names], several.duration, several.offset, several.line)
    assert kinds(several) == ["channels"]
    assert kinds(several, channel_selector=0) == ["shorter"]


def test_counts_follow_the_order_of_the_kinds() -> None:
    assert count_by_kind(["silent", "unreadable", "silent"]) == "1 unreadable, 2 silent"
    assert count_by_kind([]) == ""


def test_warnings_name_only_the_first_file_of_each_problem(
    caplog: pytest.LogCaptureFixture, our_messages: Callable[[], list[str]]
) -> None:
    found = [Problem("silent", f"{n}.wav", f"m.json:{n}", f"{n}.wav: is silent (m.json:{n})") for n in range(9)]
    warnings = ProblemWarnings(most=3)
    with caplog.at_level(logging.WARNING, "nest_ssl"):
        for problem in found:
            warnings.warn([problem, problem])
    assert our_messages() == [
        *(f"{n}.wav: is silent (m.json:{n}); used" for n in range(3)),
        "further problems with audio are counted but not logged here",
    ]
