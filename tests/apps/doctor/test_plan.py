"""The plan of a run: adjusted values, and problems with the same messages as those of the run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from nest_ssl.apps.doctor import CheckResult
from nest_ssl.apps.doctor.machine import Facts, Gpu
from nest_ssl.apps.doctor.plan import (
    RunPlan,
    check_plan,
    check_run_folder,
    check_shared_memory,
    make_plan,
    workers_with_room,
    write_speed,
)
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from tests.apps.doctor.machines import made_up

Command = Callable[..., CommandLine]
LAPTOP = made_up(cores=4, usable_cores=4)


def plan(command: CommandLine, facts: Facts = LAPTOP) -> RunPlan:
    return make_plan(load_config(command), facts)


def findings(command: CommandLine, **facts: Any) -> list[CheckResult]:
    machine = dataclasses.replace(LAPTOP, **facts)
    return check_plan(plan(command, machine), machine)


def named(found: list[CheckResult], name: str) -> list[CheckResult]:
    return [finding for finding in found if finding.name == name]


def test_what_the_run_would_adjust_is_told_with_its_reason(command: Command) -> None:
    lines = [finding.found for finding in named(findings(command("trainer.strategy=ddp")), "adjusted")]
    assert "trainer.devices: -1 -> 1 (without a GPU, one process trains on all cores)" in lines
    assert any(line.startswith("trainer.strategy: ddp -> auto") for line in lines)


def test_data_is_described_and_usable(command: Command) -> None:
    made = plan(command())
    (data,) = named(check_plan(made, LAPTOP), "data")
    assert (data.state, made.can_use("data"), made.can_use("model")) == ("ok", True, True)
    assert data.found.startswith("12 utterances")


def test_telephone_speech_is_a_warning(command: Command, tmp_path: Path) -> None:
    rows = []
    for number in range(4):
        samples = np.random.default_rng(number).standard_normal(16000) * np.hanning(16000) / 8
        soundfile.write(tmp_path / f"{number}.wav", soxr.resample(samples, 8000, 16000), 16000)
        rows.append(json.dumps({"audio_filepath": f"{number}.wav", "duration": 2.0}))
    (tmp_path / "narrow.json").write_text("\n".join(rows))
    (found,) = named(findings(command(f"model.train_ds.manifest_filepath={tmp_path}/narrow.json")), "bandwidth")
    assert found.state == "warning"
    assert found.found.startswith("an estimate from 4 files: 4 of 4 hold no sound above 4000 Hz")
    assert not named(findings(command()), "bandwidth")


def test_a_manifest_that_is_missing_is_the_runs_error(command: Command) -> None:
    without_validation = "model.validation_ds.manifest_filepath=null"
    made = plan(command("model.train_ds.manifest_filepath=nowhere.json", without_validation))
    (problem,) = made.problems
    assert (problem.name, problem.state) == ("data", "problem")
    assert problem.found.startswith("model.train_ds.manifest_filepath: 'nowhere.json': no such file")


def test_generated_validation_data_beside_ones_own_speech_is_the_runs_error(command: Command, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(32000), 16000)
    (tmp_path / "own.json").write_text(2 * (json.dumps({"audio_filepath": "a.wav", "duration": 2.0}) + "\n"))
    own = f"model.train_ds.manifest_filepath={tmp_path}/own.json"
    made = make_plan(load_config(command(own)), LAPTOP, ["nest-ssl train", own])
    (problem,) = made.problems
    assert (problem.name, made.can_use("data")) == ("run", True)
    assert "is generated sounds" in problem.found
    assert "nest-ssl train" in problem.found


def test_warnings_of_the_run_are_told(command: Command) -> None:
    (warning,) = named(findings(command("model.validation_ds.manifest_filepath=null")), "run")
    assert warning.state == "warning"
    assert "leaves no validation" in warning.found


def test_the_dummy_corpus_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.chdir(tmp_path)
    (problem,) = plan(command("model.train_ds.manifest_filepath=data/dummy_ssl/train_manifest.json")).problems
    assert "nest-ssl data make-dummy" in problem.advice


def test_audio_that_is_not_where_the_manifest_says_is_a_problem(tmp_path: Path, command: Command) -> None:
    manifest = tmp_path / "moved.json"
    manifest.write_text("".join(json.dumps({"audio_filepath": f"{n}.wav", "duration": 2}) + "\n" for n in range(9)))
    _, missing = named(findings(command(f"model.train_ds.manifest_filepath={manifest}")), "data")
    assert missing.state == "problem"
    assert "9 of 9 audio files" in missing.found


@pytest.mark.parametrize(
    ("override", "name", "says"),
    [
        ("model.encoder.d_model=10000000", "model", "model.encoder.d_model"),
        ("trainer.strategy=fastest", "run", "trainer: "),
        ("trainer.logger=true", "run", "trainer.logger: exp_manager makes the loggers"),
        ("model.train_ds.batch_size=0", "data", "model.train_ds.batch_size: is 0"),
    ],
)
def test_what_the_run_would_refuse_is_a_problem(command: Command, override: str, name: str, says: str) -> None:
    (problem,) = [finding for finding in findings(command(override)) if finding.state == "problem"]
    assert problem.name == name
    assert says in problem.found


def test_more_workers_than_cores(command: Command) -> None:
    (finding,) = named(findings(command("model.train_ds.num_workers=9")), "workers")
    assert finding.state == "warning"
    assert "num_workers=3" in finding.advice


@pytest.mark.parametrize(("free", "state"), [(64 * 10**6, "warning"), (10**12, "ok")])
def test_shared_memory_is_held_against_what_workers_fill(command: Command, free: int, state: str) -> None:
    asked = command("model.train_ds.num_workers=4", "model.train_ds.batch_size=12")
    (finding,) = named(findings(asked, shared_memory=free), "shared memory")
    assert finding.state == state
    assert state == "ok" or "--shm-size" in finding.advice


def test_shared_memory_is_held_against_what_is_recommended_too(command: Command) -> None:
    container = dataclasses.replace(LAPTOP, shared_memory=64 * 10**6)
    made = plan(command("model.train_ds.num_workers=0", "model.train_ds.batch_size=1"), container)
    assert not named(check_plan(made, container), "shared memory")
    (small,) = check_shared_memory(made, container, num_workers=1)
    (large,) = check_shared_memory(made, container, num_workers=4, batch_size=12)
    assert (small.state, large.state) == ("ok", "warning")


def test_no_more_workers_than_their_batches_find_room(command: Command) -> None:
    made = plan(command("model.train_ds.batch_size=4"))
    container = dataclasses.replace(LAPTOP, shared_memory=64 * 10**6)
    room = workers_with_room(made, container, 8)
    assert 0 < room < 8
    assert [
        finding.state
        for workers in (room, room + 1)
        for finding in check_shared_memory(made, container, num_workers=workers)
    ] == ["ok", "warning"]
    assert workers_with_room(made, container, 8, batch_size=10**6) == 0
    assert workers_with_room(made, LAPTOP, 8) == 8


def test_processes_share_one_shared_memory(command: Command) -> None:
    gpu = Gpu("some", 10**10, "8.0", bf16=True)
    needed = [
        named(findings(command("model.train_ds.num_workers=2"), gpus=gpus, shared_memory=10**12), "shared memory")
        for gpus in ((gpu,), (gpu, gpu))
    ]
    assert [finding.found.split(", ")[1].split(" fill")[0] for (finding,) in needed] == ["2 workers", "2 x 2 workers"]


def test_windows_has_no_fsdp(command: Command) -> None:
    gpu = Gpu("some", 10**10, "8.0", bf16=True)
    (finding,) = named(findings(command("trainer.strategy=fsdp"), system="Windows", gpus=(gpu, gpu)), "strategy")
    assert finding.state == "problem"


def test_checkpoints_are_counted_before_there_is_a_model(command: Command) -> None:
    few = plan(command("exp_manager.checkpoint_callback_params.save_top_k=1"))
    many = plan(command("exp_manager.checkpoint_callback_params.save_top_k=5"))
    assert many.checkpoint_bytes - few.checkpoint_bytes == 4 * 3 * few.weight_bytes
    assert not few.folder.exists()


def checked(folder: Path, needed: int) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in check_run_folder(folder, needed)}


def test_a_run_folder_that_is_not_there_yet_is_judged_by_what_is_above_it(tmp_path: Path) -> None:
    found = checked(tmp_path / "a" / "b", needed=1)
    assert found["space"].state == "ok"
    assert found["run's disk"].state in ("ok", "warning")  # depends on the disk
    assert found["run's disk"].found.endswith(f"({tmp_path})")
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_will_not_fit_are_a_warning(tmp_path: Path) -> None:
    finding = checked(tmp_path, needed=10**18)["space"]
    assert finding.state == "warning"
    assert "save_top_k" in finding.advice


def test_the_speed_of_writing_is_measured_and_nothing_remains(tmp_path: Path) -> None:
    assert write_speed(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (finding,) = check_run_folder(tmp_path / "file", needed=1)
    assert finding.state == "problem"
    assert "exp_manager.exp_dir" in finding.advice
