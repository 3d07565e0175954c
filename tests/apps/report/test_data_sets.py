"""Durations from the manifests that a run's configuration names."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from nest_ssl.apps.report.data_sets import DurationsOfSet, data_sets
from nest_ssl.apps.report.run import open_runs
from tests.apps.report.example_runs import CONFIG, write_run


def manifest(path: Path, durations: list[float | None]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"audio_filepath": "a.wav", **({} if of is None else {"duration": of})} for of in durations]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train_set(folder: Path, **train_ds: object) -> DurationsOfSet:
    config = {**CONFIG, "model": {**CONFIG["model"], "train_ds": train_ds}}
    (run,) = open_runs([write_run(folder, began=1000.0, steps=60, config=config)])
    (found,) = data_sets(run)
    return found


def test_durations_of_all_files_are_read_in_order(tmp_path: Path) -> None:
    one, two = manifest(tmp_path / "1.json", [1.0, 2.5]), manifest(tmp_path / "2.json", [None, 70])
    found = train_set(tmp_path / "run", manifest_filepath=[[str(one), 0.3], [str(two), 0.7]], max_duration=60.0)
    assert np.array_equal(found.durations, [1.0, 2.5, math.nan, 70.0], equal_nan=True)
    assert found.used.tolist() == [1.0, 2.5]
    assert (found.problem, found.cut_short) == (None, False)


def test_ranges_name_several_files(tmp_path: Path) -> None:
    for number in range(3):
        manifest(tmp_path / f"shard_{number}.json", [float(number + 1)])
    found = train_set(tmp_path / "run", manifest_filepath=f"{tmp_path}/shard__OP_0..2_CL_.json")
    assert found.durations.tolist() == [1.0, 2.0, 3.0]


def test_a_relative_path_is_found_from_the_folder_the_run_was_started_in(tmp_path: Path) -> None:
    manifest(tmp_path / "data" / "train.json", [3.0])
    found = train_set(tmp_path / "nest_experiments" / "name", manifest_filepath="data/train.json")
    assert found.durations.tolist() == [3.0]


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ({"manifest_filepath": "gone.json"}, "no such file"),
        ({"manifest_filepath": None}, "names no manifest"),
        ({"manifest_filepath": None, "shar_path": "x"}, "named by shar_path"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, node: dict, problem: str) -> None:
    found = train_set(tmp_path / "run", **node)
    assert problem in (found.problem or "")
    assert len(found.durations) == 0


def test_lines_before_a_bad_one_count_and_it_is_named(tmp_path: Path) -> None:
    path = manifest(tmp_path / "train.json", [1.0, 2.0])
    path.write_text(path.read_text() + "{not json\n")
    found = train_set(tmp_path / "run", manifest_filepath=str(path))
    assert found.durations.tolist() == [1.0, 2.0]
    assert "train.json:3" in (found.problem or "")


def test_a_huge_manifest_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = manifest(tmp_path / "train.json", [1.0] * 5000)
    config = {**CONFIG, "model": {**CONFIG["model"], "train_ds": {"manifest_filepath": str(path)}}}
    (run,) = open_runs([write_run(tmp_path / "run", began=1000.0, steps=60, config=config)])
    ticking = count(step=3)  # seconds between two looks at the clock
    (found,) = data_sets(run, clock=lambda: float(next(ticking)))
    assert found.cut_short
    assert 0 < len(found.durations) < 5000


def test_the_sets_of_a_trained_run_are_its_manifests(trained: Path) -> None:
    (run,) = open_runs([trained])
    assert [(of.name, len(of.durations), of.problem) for of in data_sets(run)] == [
        ("train", 8, None),
        ("validation", 2, None),
    ]
