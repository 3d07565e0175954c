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

from nest_ssl.errors import CheckpointError
from nest_ssl.training import checkpoints
from nest_ssl.training.checkpoints import RunCheckpoint, SafeCheckpointIO
from nest_ssl.training.settings import CheckpointSettings

FILENAME = "NEST--{val_loss:.3f}-{step}"


@pytest.fixture(autouse=True)
def archives(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The weights that went into the `.nemo` archive, one entry each time it was written."""
    written: list[float] = []

    def save_nemo(model: Any, path: Path) -> None:
        written.append(float(model.layer.weight.detach().sum()))
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("archive")

    monkeypatch.setattr(checkpoints, "save_nemo", save_nemo)
    return written


def callback(folder: Path, **settings: Any) -> RunCheckpoint:
    chosen = {"filename": FILENAME, "save_top_k": 1, "save_nemo_on_train_end": False, **settings}
    return RunCheckpoint(CheckpointSettings(**chosen), folder, "NEST", save_on_sigterm=True)


def train(
    fit: Callable[..., pl.Trainer], model: pl.LightningModule, folder: Path, *more: Callback, **arguments: Any
) -> RunCheckpoint:
    settings = arguments.pop("settings", {})
    checkpoint = callback(folder, **settings)
    schedule = {"max_steps": 6, "val_check_interval": 2, "enable_checkpointing": True, **arguments}
    fit(model, callbacks=[*more, checkpoint], plugins=[SafeCheckpointIO()], **schedule)
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

    monkeypatch.setattr(checkpoints.os, "link", refuse)
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


def test_a_save_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    SafeCheckpointIO().save_checkpoint({"state_dict": {}, "epoch": 1}, path)
    with pytest.raises((TypeError, AttributeError)):
        SafeCheckpointIO().save_checkpoint({"state_dict": {}, "bad": (x for x in ())}, path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.ckpt"]
    assert SafeCheckpointIO().load_checkpoint(path)["epoch"] == 1


class Payload:
    ran = False

    def __reduce__(self) -> tuple:
        return setattr, (Payload, "ran", True)


def test_resuming_never_runs_what_a_checkpoint_brings(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": {}, "extra": Payload()}, path)
    with pytest.raises(CheckpointError):
        SafeCheckpointIO().load_checkpoint(path)
    assert not Payload.ran


def test_the_archive_follows_every_checkpoint_once(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    model = regression([3.0, 2.0, 1.0])
    train(fit, model, tmp_path, settings={"always_save_nemo": True, "save_nemo_on_train_end": True})
    assert len(archives) == 3
    assert math.isclose(archives[-1], float(model.layer.weight.detach().sum()))


def test_an_archive_that_cannot_be_written_ends_the_run(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoints, "save_nemo", fail)
    with pytest.raises(OSError, match="disk full"):
        train(fit, regression([3.0]), tmp_path, settings={"always_save_nemo": True})
    assert "NEST--val_loss=3.000-step=2.ckpt" in files(tmp_path)  # written beside it, whole
    assert step_of(tmp_path / "checkpoints" / "NEST--val_loss=3.000-step=2.ckpt") == 2


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
