from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nest_ssl.data.inspection import changes as data_changes
from nest_ssl.data.inspection.changes import compare, lines_file, read_lines, write_lines
from nest_ssl.data.inspection.fingerprint import DataSet, Fingerprint, line_digests
from nest_ssl.data.manifest import load_manifest

KEY = "model.train_ds.manifest_filepath"
NAMES = [f"/data/speaker_{number % 3}/utterance_{number:02d}.wav" for number in range(12)]
Make = Callable[..., DataSet]


@pytest.fixture
def make(write_manifest: Callable[..., str]) -> Make:
    """Return a data set of these paths, each with another duration."""

    def make_set(paths: list[str], file: str = "manifest.json", seconds: float | None = None) -> DataSet:
        rows = [
            {"audio_filepath": path, "duration": seconds or 1 + sum(Path(path).name.encode()) % 97 / 10}
            for path in paths
        ]
        return DataSet((load_manifest([write_manifest(rows, file)]),))

    return make_set


def changes(old: DataSet, new: DataSet, folder: Path) -> data_changes.DataChange | None:
    """Write and read the lines in a run's folder."""
    former = {KEY: old.fingerprint()}
    write_lines({KEY: old}, former, folder)
    return compare(former[KEY], new.fingerprint(), read_lines(KEY, former, [folder]), new)


def test_the_same_lines_are_no_change(make: Make, tmp_path: Path) -> None:
    assert changes(make(NAMES, "1.json"), make(NAMES, "2.json"), tmp_path) is None


def test_removed_added_and_moved_lines_are_named(make: Make, tmp_path: Path) -> None:
    now = [*NAMES[1:4], NAMES[10], *NAMES[4:10], "/data/new.wav", NAMES[11]]
    change = changes(make(NAMES, "1.json"), make(now, "2.json"), tmp_path)
    assert change is not None
    assert change.what == (
        f"12 -> 12 utterances: 1 removed ({NAMES[0]}), 1 added (/data/new.wav), 1 in another place ({NAMES[10]})"
    )
    assert not change.same_order
    assert not change.nothing_in_common


def test_many_changes_are_counted(make: Make, tmp_path: Path) -> None:
    change = changes(make(NAMES, "1.json"), make(NAMES[:7], "2.json"), tmp_path)
    assert change is not None
    assert change.what == f"12 -> 7 utterances: 5 removed ({', '.join(NAMES[7:10])} and 2 more)"


def test_any_other_order_of_lines_is_noticed(make: Make, tmp_path: Path) -> None:
    for seed in range(5):
        shuffled = random.Random(seed).sample(NAMES, len(NAMES))
        change = changes(make(NAMES, "1.json"), make(shuffled, "2.json"), tmp_path)
        assert change is not None
        assert "in another place" in change.what
        assert "removed" not in change.what


def test_a_corpus_that_was_moved_is_the_same(make: Make, tmp_path: Path) -> None:
    moved = [path.replace("/data/", "/mnt/other disk/") for path in NAMES]
    change = changes(make(NAMES, "1.json"), make(moved, "2.json"), tmp_path)
    assert change is not None
    assert change.same_order


def test_a_corpus_with_renamed_files_is_recognised_by_its_durations(make: Make, tmp_path: Path) -> None:
    old, new = make(NAMES, "1.json"), make([path + ".flac" for path in NAMES], "2.json")
    renamed = DataSet(new.manifests)
    np.copyto(renamed.manifests[0].durations, old.manifests[0].durations)
    change = changes(old, renamed, tmp_path)
    assert change is not None
    assert change.same_order


def test_clips_of_one_length_under_other_names_are_another_corpus(make: Make, tmp_path: Path) -> None:
    others = [path.replace("utterance", "clip") for path in NAMES]
    change = changes(make(NAMES, "1.json", 10.0), make(others, "2.json", 10.0), tmp_path)
    assert change is not None
    assert change.nothing_in_common


def test_folders_distinguish_files_of_the_same_name_and_length(make: Make, tmp_path: Path) -> None:
    clips = [f"/data/speaker_{speaker}/clip_{clip}.wav" for speaker in range(3) for clip in range(4)]
    change = changes(make(clips, "1.json", 10.0), make([*clips[4:], *clips[:4]], "2.json", 10.0), tmp_path)
    assert change is not None
    assert "4 in another place" in change.what


def test_without_the_file_of_lines_the_change_is_still_reported(make: Make, tmp_path: Path) -> None:
    old, new = make(NAMES, "1.json"), make(NAMES[1:], "2.json")
    former = {KEY: old.fingerprint()}
    write_lines({KEY: old}, former, tmp_path)
    path = lines_file(former, tmp_path)
    for content in (b"", b"PK\x03\x04 not an archive", path.read_bytes()[:-40]):
        path.write_bytes(content)
        change = compare(former[KEY], new.fingerprint(), read_lines(KEY, former, [tmp_path]), new)
        assert change is not None
        assert "12 -> 11 utterances" in change.what
        assert "not known" in change.what


def test_a_file_of_lines_that_expands_too_far_is_not_read(make: Make, tmp_path: Path) -> None:
    former = {KEY: make(NAMES).fingerprint()}
    path = lines_file(former, tmp_path)
    path.parent.mkdir()
    with path.open("wb") as file:
        np.savez_compressed(file, **{f"{KEY} lines": np.zeros(len(NAMES), np.uint64)})
    assert read_lines(KEY, former, [tmp_path]) is None


def test_positions_are_named_instead_of_very_many_lines(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_changes, "_MOST_NAMES", 5)
    change = changes(make(NAMES, "1.json"), make(NAMES[:-1], "2.json"), tmp_path)
    assert change is not None
    assert "1 removed (utterance 12)" in change.what


def test_digests_depend_on_the_line_alone(make: Make) -> None:
    """A digest depends neither on neighbouring lines nor on the start of a block."""
    names = [f"/data/{'x' * (number % 40)}/{number}.wav" for number in range(100)]
    together = line_digests(make(names).manifests[0])
    for number in (0, 1, 38, 39, 40, 99):
        assert line_digests(make([names[number]]).manifests[0])[0] == together[number]
    assert len(np.unique(together)) == 100


def test_a_fingerprint_is_restored_from_a_checkpoint_and_other_values_are_refused(make: Make) -> None:
    fingerprint = make(NAMES).fingerprint()
    assert Fingerprint.from_plain(fingerprint.plain()) == fingerprint
    for wrong in (None, 3, [], {}, {**fingerprint.plain(), "utterances": "12"}, {**fingerprint.plain(), "files": [1]}):
        assert Fingerprint.from_plain(wrong) is None
