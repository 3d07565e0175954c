from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from nest_ssl.config.machine import Adjustment
from nest_ssl.errors import ConfigError, NestError
from nest_ssl.training import run_folder
from nest_ssl.training.experiment import Experiment, ExperimentFolder, plan_experiment


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(trainer: dict[str, Any] | None = None, **node: Any) -> Experiment:
    return plan_experiment(node, trainer or {})


def checkpoint(folder: Path, name: str, age: int = 0) -> Path:
    path = folder / "checkpoints" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": {}}, path)
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_a_run_that_may_be_continued_has_no_version_folder(tmp_path: Path) -> None:
    experiment = plan(name="NEST", resume_if_exists=True, resume_ignore_no_checkpoint=True)
    assert experiment.folder == tmp_path / "nest_experiments" / "NEST"


def test_other_runs_are_distinguished_by_date_and_time(tmp_path: Path) -> None:
    folder = plan(name="NEST", exp_dir="runs").folder
    assert folder.parent == tmp_path / "runs" / "NEST"
    assert len(folder.name) == len("2025-01-31_23-59-59")


def test_other_runs_can_be_distinguished_by_a_number(tmp_path: Path) -> None:
    (tmp_path / "nest_experiments" / "default" / "version_7").mkdir(parents=True)
    assert plan(use_datetime_version=False).folder.name == "version_8"


def test_a_run_with_an_explicit_version_can_be_continued(tmp_path: Path) -> None:
    last = checkpoint(tmp_path / "nest_experiments" / "NEST" / "3", "NEST--step=5-last.ckpt")
    experiment = plan(name="NEST", version=3, resume_if_exists=True)
    assert experiment.folder.name == "3"
    assert experiment.checkpoint_to_resume() == last


def test_an_explicit_folder_is_used_unchanged(tmp_path: Path) -> None:
    assert plan(name="NEST", explicit_log_dir="here").folder == tmp_path / "here"


def test_planning_writes_nothing(tmp_path: Path) -> None:
    plan(name="NEST")
    assert list(tmp_path.iterdir()) == []


def test_the_newest_of_two_last_checkpoints_of_a_killed_run_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "nest_experiments" / "NEST"
    checkpoint(folder, "NEST--val_loss=5.1-step=900-last.ckpt", age=60)
    newest = checkpoint(folder, "NEST--val_loss=5.0-step=1000-last.ckpt")
    checkpoint(folder, "NEST--val_loss=4.9-step=1000.ckpt")
    assert plan(name="NEST", resume_if_exists=True).checkpoint_to_resume() == newest


def test_a_run_without_resume_if_exists_starts_again(tmp_path: Path) -> None:
    checkpoint(tmp_path / "nest_experiments" / "NEST" / "3", "NEST--step=5-last.ckpt")
    assert plan(name="NEST", version=3).checkpoint_to_resume() is None


def test_a_named_checkpoint_is_continued_unless_the_folder_has_a_later_one(tmp_path: Path) -> None:
    named = checkpoint(tmp_path / "elsewhere", "some.ckpt")
    node = {"name": "NEST", "resume_if_exists": True, "resume_from_checkpoint": str(named)}
    assert plan(**node).checkpoint_to_resume() == named
    last = checkpoint(tmp_path / "nest_experiments" / "NEST", "NEST--step=5-last.ckpt")
    assert plan(**node).checkpoint_to_resume() == last


@pytest.mark.parametrize(
    ("trainer", "node", "message"),
    [
        ({"logger": True}, {}, r"trainer.logger: exp_manager makes the loggers; set trainer.logger=false"),
        ({"enable_checkpointing": True}, {}, r"trainer.enable_checkpointing: exp_manager writes the checkpoints"),
        ({}, {"resume_if_exists": True}, r"exp_manager.resume_if_exists: there is no \*-last.ckpt in .*NEST"),
        ({}, {"resume_from_checkpoint": "no.ckpt"}, r"exp_manager.resume_from_checkpoint: 'no.ckpt' is not a file"),
        ({}, {"files_to_copy": ["no.txt"]}, r"exp_manager.files_to_copy: 'no.txt' is not a file"),
        ({}, {"create_wandb_logger": True}, r"exp_manager.wandb_logger_kwargs: set its name and its project"),
        (
            {},
            {"create_mlflow_logger": True, "mlflow_logger_kwargs": {"tracking_url": "x"}},
            r"exp_manager.mlflow_logger_kwargs.tracking_url: .* \(did you mean 'tracking_uri'\?\)",
        ),
        ({}, {"summary_writer_kwargs": {"log_dir": "x"}}, r"exp_manager.summary_writer_kwargs.log_dir"),
    ],
)
def test_invalid_combinations_are_refused(trainer: dict, node: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(trainer, name="NEST", **node).checkpoint_to_resume()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"create_wandb_logger": True, "wandb_logger_kwargs": {"name": "a", "project": "b"}},
            r"exp_manager.create_wandb_logger: wandb is not installed; pip install wandb",
        ),
        (
            {"create_mlflow_logger": True},
            r"exp_manager.create_mlflow_logger: mlflow is not installed; pip install mlflow-skinny",
        ),
    ],
)
def test_missing_logger_packages_are_named(node: dict, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ConfigError, match=message):
        plan(**node)


def test_the_trainers_checkpoints_are_allowed_without_those_of_exp_manager() -> None:
    plan({"enable_checkpointing": True}, create_checkpoint_callback=False)


def start(experiment: Experiment, **trainer: Any) -> ExperimentFolder:
    """Do what a process does before its first step; `broadcast` returns the value of the first process."""
    strategy = SimpleNamespace(broadcast=trainer.pop("broadcast", lambda value: value))
    place = SimpleNamespace(is_global_zero=True, strategy=strategy, callbacks=[], **trainer)
    folder = ExperimentFolder(experiment, OmegaConf.create({"seed": 1}))
    folder.setup(place, None, "fit")  # type: ignore[arg-type]
    folder.on_fit_start(place, None)  # type: ignore[arg-type]
    return folder


def test_files_of_earlier_starts_are_kept_even_if_an_older_one_was_removed(tmp_path: Path) -> None:
    experiment = plan(explicit_log_dir=str(tmp_path / "run"))
    for _ in range(3):
        start(experiment)
    (tmp_path / "run" / "run_0" / "config.yaml").unlink()
    (tmp_path / "run" / "run_0" / "environment.json").unlink()
    (tmp_path / "run" / "run_0").rmdir()
    start(experiment)
    assert sorted(path.name for path in (tmp_path / "run").glob("run_*")) == ["run_1", "run_2"]
    assert (tmp_path / "run" / "run_2" / "config.yaml").read_text() == "seed: 1\n"


def test_adjustments_to_the_machine_are_written_with_their_reasons(tmp_path: Path) -> None:
    devices = OmegaConf.create([0, 1])
    adjustments = [Adjustment("trainer.devices", devices, 1, "no GPU"), Adjustment("trainer.x", True, False, "why")]
    start(plan_experiment({"explicit_log_dir": str(tmp_path / "run")}, {}, adjustments))
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["adjusted"] == [
        {"key": "trainer.devices", "asked": [0, 1], "used": 1, "reason": "no GPU"},
        {"key": "trainer.x", "asked": True, "used": False, "reason": "why"},
    ]


def test_a_folder_that_cannot_be_written_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder, "atomic_write", full)
    with pytest.raises(NestError, match=r"run: the run's folder cannot be written: \[Errno 28\] No space left"):
        start(plan(explicit_log_dir=str(tmp_path / "run")))


def test_every_process_writes_to_the_folder_of_the_first_one(tmp_path: Path) -> None:
    first, other = plan(explicit_log_dir=str(tmp_path / "12-59-59")), plan(explicit_log_dir=str(tmp_path / "13-00-00"))
    callbacks = other.callbacks(OmegaConf.create())
    trainer = SimpleNamespace(callbacks=callbacks, strategy=SimpleNamespace(broadcast=lambda _: str(first.folder)))
    callbacks[0].setup(trainer, None, "fit")  # type: ignore[arg-type]
    folders = [callback.folder for callback in callbacks if hasattr(callback, "folder")]
    assert folders == [first.folder / "nonfinite_batches", first.folder, first.folder / "samples"]
    assert callbacks[0].experiment.folder == first.folder  # type: ignore[attr-defined]
