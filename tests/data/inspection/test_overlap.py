"""Utterances in both the training and the validation set are found under any spelling of their paths."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nest_ssl.data.inspection.overlap import AudioParts, Overlap, find_overlap, shared_audio
from nest_ssl.data.manifest import load_manifest


@pytest.fixture
def overlap(write_manifest: Callable[..., str]) -> Callable[..., Overlap | None]:
    """Return the overlap of the rows of a training and a validation manifest."""

    def find(train: list[dict[str, Any]], val: list[dict[str, Any]], folder: str = "") -> Overlap | None:
        names = [write_manifest(train, "train.json"), write_manifest(val, f"{folder}val.json")]
        return find_overlap(*([load_manifest([name])] for name in names))

    return find


def row(name: str, duration: float | None = 2.0, **fields: Any) -> dict[str, Any]:
    return {"audio_filepath": name, "duration": duration, **fields}


def test_overlapping_parts_equal_those_of_a_naive_search() -> None:
    draw = random.Random(1)
    sides = []
    for count in (300, 200):
        files = np.array([draw.randrange(60) for _ in range(count)])
        offsets = np.array([draw.choice([np.nan, *[draw.randrange(200) / 4] * 9]) for _ in range(count)])
        durations = np.array([draw.choice([np.nan, *[draw.randrange(1, 12) / 4] * 19]) for _ in range(count)])
        sides.append((files, offsets, durations))
    train, val = sides
    found = shared_audio(AudioParts.of(*val), AudioParts.of(*train))

    def share(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        ends = [start + (np.inf if np.isnan(length) else length) for _, start, length in (one, other)]
        return one[0] == other[0] and min(ends) - max(one[1], other[1]) > 0.01

    def lines(side: tuple[np.ndarray, ...]) -> list[tuple[Any, ...]]:
        return [(file, 0.0 if np.isnan(start) else start, length) for file, start, length in zip(*side, strict=True)]

    expected = [number for number, one in enumerate(lines(val)) if any(share(one, other) for other in lines(train))]
    assert found.lines.tolist() == expected
    assert 0 < len(expected) < 200
    for line, other in zip(*found, strict=True):
        assert share(lines(val)[line], lines(train)[other])


@pytest.mark.parametrize(
    "spelling", ["a/x.wav", "./a/../a/x.wav", "{here}/a/x.wav", "{here}/link/x.wav", "b/../link/x.wav"]
)
def test_the_same_file_is_found_under_another_name(
    overlap: Callable[..., Overlap | None], tmp_path: Path, spelling: str
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.wav").touch()
    try:
        (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    except OSError:
        pytest.skip("no right to make links")
    train = [row("b/x.wav"), row("a/y.wav"), row("a/x.wav")]
    found = overlap(train, [row("a/z.wav"), row(spelling.format(here=tmp_path))])
    assert found is not None
    assert (found.lines, found.of) == (1, 2)
    assert (found.validation_line, found.training_line) == (f"{tmp_path}/val.json:2", f"{tmp_path}/train.json:3")


def test_other_files_and_other_parts_of_a_file_are_no_overlap(overlap: Callable[..., Overlap | None]) -> None:
    train = [row("a/x.wav"), row("long.wav", 5.0, offset=0.0), row("a\u00e4\u8bed.wav"), row("s.wav")]
    val = [row("b/x.wav"), row("long.wav", 5.0, offset=5.0), row("b\u00e4\u8bed.wav"), row("ss.wav"), row("t/s.wav")]
    assert overlap(train, val) is None
    assert overlap(train, [*val, row("long.wav", 5.0, offset=4.0)]) is not None
    assert overlap(train, [*val, row("a\u00e4\u8bed.wav")]) is not None


def test_relative_names_mean_the_folder_of_their_manifest_or_the_working_directory(
    overlap: Callable[..., Overlap | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "v" / "a").mkdir(parents=True)
    (tmp_path / "v" / "a" / "x.wav").touch()
    assert overlap([row("a/x.wav")], [row("a/x.wav")], "v/") is None  # two files with the same name
    assert overlap([row("v/a/x.wav")], [row("a/x.wav")], "v/") is not None
    monkeypatch.chdir(tmp_path)
    assert overlap([row("v/a/x.wav")], [row("v/a/x.wav")], "v/") is not None


def test_the_training_manifest_itself_and_several_manifests(write_manifest: Callable[..., str]) -> None:
    train = load_manifest([write_manifest([row("a.wav"), row("b.wav")], "train.json")])
    more = load_manifest([write_manifest([row("c.wav")], "more.json")])
    val = load_manifest([write_manifest([row("d.wav"), row("c.wav")], "val.json")])
    both = find_overlap([train], [train])
    assert both is not None
    assert (both.lines, both.of) == (2, 2)
    found = find_overlap([train, more], [val])
    assert found is not None
    assert (found.lines, os.path.basename(found.training_line)) == (1, "more.json:1")  # noqa: PTH119


def test_members_of_tar_files_are_compared_by_name_and_duration(overlap: Callable[..., Overlap | None]) -> None:
    train = [row("1/x.wav", shard_id=0), row("y.wav", 3.0, shard_id=1)]
    assert overlap(train, [row("y.wav", 4.0, shard_id=0)]) is None
    found = overlap(train, [row("y.wav", 3.0, shard_id=0), row("x.wav", shard_id=7)])
    assert found is not None
    assert found.lines == 2
    assert "by name and duration" in str(found)


def test_names_of_all_lengths_are_distinguished(overlap: Callable[..., Overlap | None]) -> None:
    names = [f"{'ab' * length}{last}" for length in range(20) for last in "xyz"]
    draw = random.Random(2)
    draw.shuffle(names)
    train, val = names[:40], names[20:]
    found = overlap([row(f"f/{name}") for name in train], [row(f"f/{name}") for name in val])
    assert found is not None
    assert found.lines == len(set(train) & set(val)) == 20
