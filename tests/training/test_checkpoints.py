from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from nest_ssl.checkpoint import SavedModel
from nest_ssl.errors import CheckpointError
from nest_ssl.training import checkpoint_files, checkpoints
from nest_ssl.training.checkpoint_files import CheckpointFiles
from nest_ssl.training.checkpoints import RunCheckpoint
from nest_ssl.training.settings import CheckpointSettings

FILENAME = "NEST--{val_loss:.3f}-{step}"


@pytest.fixture(autouse=True)
def archives(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The weights that went into the `.nemo` archive, one entry each time it was written."""
    written: list[float] = []

    def write_nemo(saved: SavedModel, path: Path) -> None:
        written.append(float(saved.state_dict["layer.weight"].sum()))
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("archive")

    monkeypatch.setattr(checkpoints, "write_nemo", write_nemo)
    return written


def callback(folder: Path, **settings: Any) -> RunCheckpoint:
    chosen = {"filename": FILENAME, "save_top_k": 1, "save_nemo_on_train_end": False, **settings}
    return RunCheckpoint(CheckpointSettings(**chosen), folder, "NEST", save_on_sigterm=True)


def train(
    fit: Callable[..., pl.Trainer], model: pl.LightningModule, folder: Path, *more: Callback, **arguments: Any
) -> RunCheckpoint:
    settings = arguments.pop("settings", {})
    checkpoint = callback(folder, **settings)
    plugins = [CheckpointFiles(background=settings.get("async_save", False))]
    schedule = {"max_steps": 6, "val_check_interval": 2, "enable_checkpointing": True, **arguments}
    fit(model, callbacks=[*more, checkpoint], plugins=plugins, **schedule)
    return checkpoint


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def step_of(path: Path | str) -> int:
    return torch.load(path, weights_only=True)["global_step"]


def test_the_best_and_the_last_are_kept_under_nemos_names(fit: Any, regression: Any, tmp_path: Path) -> None:
    train(fit, regression([3.0, 1.0, 2.0]), tmp_path)
    assert files(tmp_path) == {"NEST--val_loss=1.000-step=4.ckpt", "NEST--val_loss=2.000-step=6-last.ckpt"}
    assert step_of(tmp_path / "checkpoints" / "NEST--val_loss=2.000-step=6-last.ckpt") == 6


def test_best_and_last_of_one_step_are_one_file_with_two_names(fit: Any, regression: Any, tmp_path: Path) -> None:
    checkpoint = train(fit, regression([3.0, 2.0, 1.0]), tmp_path)
    assert Path(checkpoint.best_model_path).samefile(checkpoint.last_model_path)


def test_without_links_the_second_name_is_a_whole_copy(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("this file system has no links")

    monkeypatch.setattr(checkpoint_files.os, "link", refuse)
    checkpoint = train(fit, regression([3.0, 2.0, 1.0]), tmp_path)
    best, last = Path(checkpoint.best_model_path), Path(checkpoint.last_model_path)
    assert not best.samefile(last)
    assert best.read_bytes() == last.read_bytes()
    assert files(tmp_path) == {best.name, last.name}


def test_a_state_is_serialised_once_for_all_its_names(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Any] = []
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda *arguments: (saved.append(arguments), save(*arguments)))
    train(fit, regression([3.0, 2.0, 1.0]), tmp_path)  # three validations, each of which is the best so far
    assert len(saved) == 3


def test_the_end_of_the_run_is_saved_also_between_validations(fit: Any, regression: Any, tmp_path: Path) -> None:
    train(fit, regression([3.0, 1.0]), tmp_path, max_steps=5)
    assert files(tmp_path) == {"NEST--val_loss=1.000-step=4.ckpt", "NEST--val_loss=1.000-step=5-last.ckpt"}


def test_an_interval_of_time_is_given_in_seconds(fit: Any, regression: Any, tmp_path: Path) -> None:
    settings = {"train_time_interval": 1e-6, "every_n_epochs": None}
    saved = train(fit, regression([3.0]), tmp_path, settings=settings, max_steps=3, val_check_interval=3)
    assert step_of(saved.last_model_path) == 3
    assert saved.best_k_models  # of the steps in between, too


def test_a_loss_that_was_never_measured_is_not_called_zero(fit: Any, regression: Any, tmp_path: Path) -> None:
    train(fit, regression([]), tmp_path, max_steps=2)
    assert files(tmp_path) == {"NEST--val_loss=nan-step=2-last.ckpt"}


def test_a_resumed_run_replaces_the_checkpoint_that_it_came_from(fit: Any, regression: Any, tmp_path: Path) -> None:
    first = train(fit, regression([3.0, 1.0]), tmp_path, max_steps=4)
    resumed = train(fit, regression([2.0]), tmp_path, max_steps=6, ckpt_path=first.last_model_path)
    assert files(tmp_path) == {"NEST--val_loss=1.000-step=4.ckpt", "NEST--val_loss=2.000-step=6-last.ckpt"}
    assert resumed.best_model_path == first.best_model_path


def test_a_resumed_run_forgets_best_checkpoints_that_are_gone(fit: Any, regression: Any, tmp_path: Path) -> None:
    first = train(fit, regression([3.0, 1.0]), tmp_path, max_steps=4)
    Path(first.best_model_path).unlink()
    resumed = train(fit, regression([2.0]), tmp_path, max_steps=6, ckpt_path=first.last_model_path)
    assert Path(resumed.best_model_path).name == "NEST--val_loss=2.000-step=6.ckpt"


class RaiseAtStep(Callback):
    def __init__(self, step: int, exception: BaseException) -> None:
        self.step, self.exception = step, exception

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            raise self.exception


def test_the_last_follows_every_validation_also_without_improvement(fit: Any, regression: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="power cut"):
        train(fit, regression([1.0, 2.0]), tmp_path, RaiseAtStep(5, RuntimeError("power cut")))
    assert files(tmp_path) == {"NEST--val_loss=1.000-step=2.ckpt", "NEST--val_loss=2.000-step=4-last.ckpt"}


def test_a_run_that_is_told_to_end_saves_what_it_has(fit: Any, regression: Any, tmp_path: Path) -> None:
    with pytest.raises(SIGTERMException):
        train(fit, regression([3.0, 1.0]), tmp_path, RaiseAtStep(3, SIGTERMException()))
    assert "NEST--val_loss=3.000-step=3-last.ckpt" in files(tmp_path)


class Payload:
    ran = False

    def __reduce__(self) -> tuple:
        return setattr, (Payload, "ran", True)


def test_resuming_never_runs_what_a_checkpoint_brings(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": {}, "extra": Payload()}, path)
    with pytest.raises(CheckpointError):
        CheckpointFiles().load_checkpoint(path)
    assert not Payload.ran


def test_the_archive_follows_every_checkpoint_once(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    model = regression([3.0, 2.0, 1.0])
    train(fit, model, tmp_path, settings={"always_save_nemo": True, "save_nemo_on_train_end": True})
    assert len(archives) == 3
    assert math.isclose(archives[-1], float(model.layer.weight.detach().sum()))


class FullDisk(Callback):
    """There is no space for anything while the steps of this range are trained."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: range) -> None:
        self.full = full
        self.step = 0
        save = torch.save

        def save_if_there_is_space(content: Any, file: Any) -> None:
            save(content, file)
            if self.step in self.full:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(torch, "save", save_if_there_is_space)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.step = trainer.global_step


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_costs_a_checkpoint_but_neither_the_run_nor_the_one_before(
    background: bool,
    fit: Any,
    regression: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses, disk = [5.0, 4.0, 3.0, 2.0], FullDisk(monkeypatch, range(4, 7))
    stop = RaiseAtStep(7, RuntimeError("power cut"))
    with pytest.raises(RuntimeError, match="power cut"):
        train(fit, regression(losses), tmp_path, disk, stop, max_steps=8, settings={"async_save": background})
    assert files(tmp_path) == {"NEST--val_loss=5.000-step=2.ckpt", "NEST--val_loss=5.000-step=2-last.ckpt"}
    assert "No space left on device; training goes on, the newest is" in caplog.text

    disk = FullDisk(monkeypatch, range(4, 7))
    train(fit, regression(losses), tmp_path / "on", disk, max_steps=8, settings={"async_save": background})
    assert files(tmp_path / "on") == {"NEST--val_loss=2.000-step=8.ckpt", "NEST--val_loss=2.000-step=8-last.ckpt"}


def test_a_full_disk_stops_the_run_if_asked_to(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch, range(4, 7))
    with pytest.raises(CheckpointError, match=r"No space left on device; the newest is .*step=2-last\.ckpt"):
        train(fit, regression([3.0, 2.0, 1.0]), tmp_path, disk, settings={"on_write_error": "stop"})
    assert files(tmp_path) == {"NEST--val_loss=3.000-step=2.ckpt", "NEST--val_loss=3.000-step=2-last.ckpt"}


def test_a_run_whose_end_cannot_be_saved_fails(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=r"the end of the run could not be saved: .*No space left"):
        train(fit, regression([3.0, 2.0, 1.0]), tmp_path, FullDisk(monkeypatch, range(5, 7)))
    assert "NEST--val_loss=2.000-step=4-last.ckpt" in files(tmp_path)


def test_in_the_background_the_same_is_written(fit: Any, regression: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    train(fit, regression([3.0, 1.0, 2.0]), tmp_path / "at once")
    torch.manual_seed(0)
    train(fit, regression([3.0, 1.0, 2.0]), tmp_path / "later", settings={"async_save": True})
    assert files(tmp_path / "later") == files(tmp_path / "at once")
    for name in files(tmp_path / "later"):
        ours, theirs = (torch.load(tmp_path / run / "checkpoints" / name) for run in ("later", "at once"))
        assert ours["global_step"] == theirs["global_step"]
        assert torch.equal(ours["state_dict"]["layer.weight"], theirs["state_dict"]["layer.weight"])


def test_the_archive_of_the_best_model_stays_at_it(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    settings = {"save_best_model": True, "save_nemo_on_train_end": True}
    checkpoint = train(fit, regression([3.0, 1.0, 2.0]), tmp_path, settings=settings)
    best = torch.load(checkpoint.best_model_path, weights_only=True)["state_dict"]["layer.weight"]
    assert archives == [float(best.sum())]


def test_without_being_asked_the_archive_is_written_at_the_end_only(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    train(fit, regression([3.0, 2.0, 1.0]), tmp_path, settings={"save_nemo_on_train_end": True})
    assert len(archives) == 1
    assert "NEST.nemo" in files(tmp_path)


def test_a_checkpoint_from_elsewhere_names_nothing_to_delete(tmp_path: Path) -> None:
    checkpoint = callback(tmp_path)
    own, victim = tmp_path / "checkpoints" / "a.ckpt", tmp_path / "precious.ckpt"
    sneaky = tmp_path / "checkpoints" / ".." / "precious.ckpt"
    own.parent.mkdir()
    for path in (own, victim):
        path.touch()
    hostile = [str(victim), str(sneaky), "s3://bucket/precious.ckpt", "/etc/hostname", 5]
    for path in hostile:
        state: dict[str, Any] = {
            "dirpath": checkpoint.dirpath,
            "best_model_score": torch.tensor(1.0),
            "best_model_path": path,
            "best_k_models": {str(own): torch.tensor(2.0), path: torch.tensor(3.0)},
            "kth_best_model_path": path,
            "kth_value": torch.tensor(3.0),
            "last_model_path": path,
        }
        checkpoint.load_state_dict(state)
        assert list(checkpoint.best_k_models) == [str(own)]
        assert checkpoint.kth_best_model_path == str(own)
        assert checkpoint.last_model_path == ""
