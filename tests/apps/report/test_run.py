"""Opening run folders, and the errors for other folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nest_ssl.apps.report.run import newest_run, open_runs
from nest_ssl.errors import NestError
from tests.apps.report.example_runs import write_run


def test_a_folder_that_training_wrote_is_read_whole(trained: Path) -> None:
    (run,) = open_runs([trained])
    assert run.setting("trainer.max_steps") == 8
    assert [config["trainer"]["max_steps"] for config in run.earlier_configs] == [4]
    assert run.environment["torch"]
    assert run.history.last_step == 7
    assert [start.first_step for start in run.history.starts] == [0, 4]
    assert run.checkpoint_step == 8
    assert {"train_loss", "val_loss", "learning_rate", "padding_efficiency"} <= set(run.history.series)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(NestError, match=r"nowhere: no such folder; expected the folder of a run, exp_dir/name"):
        open_runs([tmp_path / "nowhere"])


def test_a_folder_above_runs_means_the_newest_run(tmp_path: Path) -> None:
    older, newer = (write_run(tmp_path / "experiments" / name, began=1000.0, steps=100) for name in ("b", "a"))
    inner = older / "run_0"
    inner.mkdir()
    (inner / "config.yaml").write_text("name: earlier\n")
    for folder, written in ((inner, 3000), (older, 1000), (newer, 2000)):
        for path in folder.iterdir():
            os.utime(path, (written, written))
    assert newest_run(tmp_path) == newest_run(tmp_path / "experiments") == newest_run(newer) == newer
    assert newest_run(older) == older


def test_a_folder_without_any_run_is_named(tmp_path: Path) -> None:
    assert newest_run(tmp_path) == tmp_path
    with pytest.raises(NestError, match=r"not the folder of a run, nor is there one below it: has neither config.yaml"):
        open_runs([tmp_path])


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", began=1000.0, steps=100)
    (folder / "config.yaml").write_text("a: [1, 2\n")
    with pytest.raises(NestError, match=r"config.yaml: cannot be read as a configuration"):
        open_runs([folder])


def test_a_folder_with_events_alone_is_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", began=1000.0, steps=100)
    for name in ("config.yaml", "environment.json"):
        (folder / name).unlink()
    (run,) = open_runs([folder])
    assert (run.config, run.environment, run.setting("model.num_classes")) == ({}, {}, None)
    assert run.history.last_step == 99


def test_half_written_files_of_a_running_run_are_no_error(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", began=1000.0, steps=100)
    (folder / "environment.json").write_text('{"torch": "2.')
    record = {"kind": "silent", "file": "a.wav", "line": "m:1", "count": 2}
    (folder / "problem_audio.jsonl").write_text(json.dumps(record) + '\n{"kind": "sil')
    (run,) = open_runs([folder])
    assert run.environment == {}
    assert run.problems == [record]


def test_runs_have_the_shortest_names_that_tell_them_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / place, began=1000.0, steps=60) for place in ("x/same", "y/same", "z/other")]
    assert [run.name for run in open_runs(folders)] == ["x/same", "y/same", "z/other"]
    assert [run.name for run in open_runs(folders[1:])] == ["same", "other"]


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", began=1000.0, steps=60)
    with pytest.raises(NestError, match="named twice"):
        open_runs([folder, folder / "."])
