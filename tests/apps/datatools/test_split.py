"""`nest-ssl data split` holds out whole groups, and the same ones every time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nest_ssl.apps.datatools.split import SplitRule, hold_out, split_manifests, split_names, val_name
from nest_ssl.data.inspection.overlap import find_overlap
from nest_ssl.data.manifest import load_manifest
from nest_ssl.errors import ManifestError, NestError


def rows(count: int = 400, speakers: int = 40) -> list[dict[str, Any]]:
    draw = random.Random(3)
    return [
        {
            "audio_filepath": f"s{draw.randrange(speakers)}/u{number}.wav",
            "duration": draw.randrange(1, 20) / 2,
            "speaker": draw.randrange(speakers),
        }
        for number in range(count)
    ]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("options", "group"),
    [
        (("speaker", False, None), lambda row: row["speaker"]),
        ((None, True, None), lambda row: row["audio_filepath"].partition("/")[0]),
        ((None, False, r"u(\d)\d*\."), lambda row: row["audio_filepath"].partition("/u")[2][0]),
        ((None, False, None), lambda row: row["audio_filepath"]),
    ],
    ids=["speaker", "folder", "pattern", "file"],
)
@pytest.mark.parametrize("share", ["5%", "0.3"])
def test_no_group_is_divided_and_no_line_is_lost(
    write_manifest: Callable[..., str],
    options: tuple[str | None, bool, str | None],
    group: Callable[[dict], Any],
    share: str,
) -> None:
    manifest = write_manifest(rows(), "all.json")
    (names,) = split_names([manifest])
    rule = SplitRule.read(share, 0, *options)
    split = split_manifests([manifest], rule, [names])
    train, val = map(read, names)
    assert train
    assert val
    assert {group(row) for row in train}.isdisjoint({group(row) for row in val})
    assert sorted(map(json.dumps, train + val)) == sorted(map(json.dumps, rows()))
    assert (len(val), split.groups_held_out) == (split.lines_held_out, len({group(row) for row in val}))
    held_out = sum(row["duration"] for row in val) / sum(row["duration"] for row in rows())
    if split.groups > 20:  # with many small groups, the share is nearly reached
        assert rule.share - 0.03 < held_out <= rule.share
    assert find_overlap(*([load_manifest([str(name)])] for name in names)) is None


def test_the_split_depends_on_the_seed_but_not_on_the_order_of_lines() -> None:
    lines = rows()
    groups, durations = [f"{row['speaker']}" for row in lines], [row["duration"] for row in lines]
    first = hold_out(groups, durations, SplitRule(0.2, 7))
    assert (hold_out(groups, durations, SplitRule(0.2, 7)).held_out == first.held_out).all()
    backwards = hold_out(groups[::-1], durations[::-1], SplitRule(0.2, 7))
    assert (backwards.held_out[::-1] == first.held_out).all()
    assert (hold_out(groups, durations, SplitRule(0.2, 8)).held_out != first.held_out).any()
    # a recorded result: a change of the hash would hold out other speakers of data that users have already split
    held_out = hold_out(list("abcdefgh"), [1.0] * 8, SplitRule(0.4)).held_out
    assert [group for group, out in zip("abcdefgh", held_out, strict=True) if out] == ["b", "e", "h"]


def test_groups_of_several_manifests_stay_together(write_manifest: Callable[..., str]) -> None:
    manifests = [write_manifest(rows()[:200], "a.json"), write_manifest(rows()[200:], "b.json")]
    names = split_names(manifests)
    split_manifests(manifests, SplitRule(0.3, field="speaker"), names)
    train, val = ({row["speaker"] for pair in names for row in read(pair[side])} for side in (0, 1))
    assert train.isdisjoint(val)
    assert train | val == {row["speaker"] for row in rows()}
    assert [sum(len(read(name)) for name in pair) for pair in names] == [200, 200]


def test_lines_without_a_group_are_for_training_and_the_smallest_group_is_held_out_if_all_are_too_large() -> None:
    groups = ["large"] * 6 + ["small"] * 3 + [None]
    split = hold_out(groups, [np.nan] * 10, SplitRule(0.1))
    assert split.held_out.tolist() == [group == "small" for group in groups]
    assert split.without_group == 1


def test_paths_stay_valid_in_another_folder(write_manifest: Callable[..., str], tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).touch()
    manifest = write_manifest([{"audio_filepath": "a.wav", "duration": 1.0}, {"audio_filepath": "b.wav"}])
    names = split_names([manifest], tmp_path / "new")
    split_manifests([manifest], SplitRule(0.5), names)
    paths = {row["audio_filepath"] for name in names[0] for row in read(name)}
    assert paths == {"../a.wav", "../b.wav"}


@pytest.mark.parametrize(
    ("field", "message"),
    [("speeker", r"no line has a field 'speeker' \(did you mean 'speaker'\?\)"), ("same", "there is one group")],
)
def test_data_without_several_groups_gives_an_error_of_one_line_and_no_files(
    write_manifest: Callable[..., str], tmp_path: Path, field: str, message: str
) -> None:
    manifest = write_manifest([{**row, "same": 1} for row in rows(20)])
    with pytest.raises(NestError, match=message):
        split_manifests([manifest], SplitRule(0.1, field=field), split_names([manifest]))
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_bad_lines_existing_files_and_shares_are_refused(write_manifest: Callable[..., str], tmp_path: Path) -> None:
    manifest = write_manifest(rows(20))
    names = split_names([manifest])
    names[0][1].touch()
    with pytest.raises(NestError, match=r"manifest\.val\.json: exists already; --force replaces it"):
        split_manifests([manifest], SplitRule(0.1), names)
    split_manifests([manifest], SplitRule(0.1), names, force=True)
    (tmp_path / "bad.json").write_text('{"audio_filepath": 3}\n')
    with pytest.raises(ManifestError, match=r"bad\.json:1: audio_filepath is 3"):
        split_manifests([str(tmp_path / "bad.json")], SplitRule(0.1), split_names([str(tmp_path / "bad.json")]))
    assert [SplitRule.read(text, 0, None, False, None).share for text in ("5%", "0.5")] == [0.05, 0.5]
    for text in ("5", "0", "100%", "some", "nan"):
        with pytest.raises(NestError, match="expected a share such as 5%"):
            SplitRule.read(text, 0, None, False, None)
    with pytest.raises(NestError, match="is not a regular expression"):
        SplitRule.read("5%", 0, None, False, "(")


@pytest.mark.parametrize(
    ("output", "name"),
    [("train.json", "val.json"), ("my_train.jsonl", "my_val.jsonl"), ("a.json", "a.val.json"), ("x", "x.val.json")],
)
def test_the_validation_manifest_is_named_after_the_training_manifest(output: str, name: str) -> None:
    assert val_name(Path("f") / output) == Path("f") / name
