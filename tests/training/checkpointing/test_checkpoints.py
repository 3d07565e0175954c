from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, IterableDataset

from nest_ssl.checkpoint import SavedModel
from nest_ssl.config.schema import CheckpointSettings
from nest_ssl.data.loading.resumable import ResumableLoader
from nest_ssl.errors import CheckpointError
from nest_ssl.training.checkpointing import checkpoint_files, checkpoints
from nest_ssl.training.checkpointing.checkpoint_files import CheckpointFiles, checkpoint_to_continue
from nest_ssl.training.checkpointing.checkpoints import RunCheckpoint, without_missing

FILENAME = "NEST--{val_loss:.3f}-{step}"


@pytest.fixture(autouse=True)
def archives(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The weights in the `.nemo` archive, one entry for each time that it was written."""
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


def test_without_links_the_second_name_is_a_copy(
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


def test_a_state_is_serialised_once_for_all_names(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Any] = []
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda *arguments: (saved.append(arguments), save(*arguments)))
    train(fit, regression([3.0, 2.0, 1.0]), tmp_path)  # three validations, each the best so far
    assert len(saved) == 3


def test_the_end_of_the_run_is_saved_even_without_a_validation(fit: Any, regression: Any, tmp_path: Path) -> None:
    train(fit, regression([3.0, 1.0]), tmp_path, max_steps=5)
    assert files(tmp_path) == {"NEST--val_loss=1.000-step=4.ckpt", "NEST--val_loss=1.000-step=5-last.ckpt"}


def test_an_interval_of_time_is_given_in_seconds(fit: Any, regression: Any, tmp_path: Path) -> None:
    settings = {"train_time_interval": 1e-6, "every_n_epochs": None}
    saved = train(fit, regression([3.0]), tmp_path, settings=settings, max_steps=3, val_check_interval=3)
    assert step_of(saved.last_model_path) == 3
    assert saved.best_k_models  # including those between validations


def test_a_loss_that_was_never_measured_is_not_zero_in_the_name(fit: Any, regression: Any, tmp_path: Path) -> None:
    train(fit, regression([]), tmp_path, max_steps=2)
    assert files(tmp_path) == {"NEST--step=2-last.ckpt"}


def test_a_checkpoint_without_a_loss_is_continued_and_replaced(fit: Any, regression: Any, tmp_path: Path) -> None:
    """This includes checkpoints of NeMo and of earlier versions, which have nan in their names."""
    train(fit, regression([]), tmp_path, max_steps=1)
    folder = tmp_path / "checkpoints"
    for step, name in ((2, "NEST--step=1-last.ckpt"), (3, "NEST--val_loss=nan-step=2-last.ckpt")):
        last = checkpoint_to_continue(folder)
        assert last is not None
        last.rename(folder / name)
        train(fit, regression([]), tmp_path, max_steps=step, ckpt_path=str(folder / name))
        assert files(tmp_path) == {f"NEST--step={step}-last.ckpt"}


@pytest.mark.parametrize(
    ("template", "labelled", "expected"),
    [
        ("NEST--{val_loss:.3f}-{step}", True, "NEST--{step}"),
        ("NEST--{step}-{val_loss:.3f}", True, "NEST--{step}"),
        ("{epoch}-{val_loss}-{val_wer:.2f}-last", True, "{epoch}-last"),
        ("NEST--{val_loss:.4f}-last", True, "NEST--{step}-last"),
        ("e={epoch}-loss={val_loss:.2f}", False, "e={epoch}"),
        ("loss={val_loss:.2f}", False, "step={step}"),
        ("{step}-{train_loss:.2f}", True, "{step}-{train_loss:.2f}"),
    ],
)
def test_fields_without_a_value_are_omitted_from_the_name(template: str, labelled: bool, expected: str) -> None:
    assert without_missing(template, {"step", "epoch", "train_loss"}, labelled) == expected


def test_a_resumed_run_replaces_the_checkpoint_from_which_it_resumed(fit: Any, regression: Any, tmp_path: Path) -> None:
    first = train(fit, regression([3.0, 1.0]), tmp_path, max_steps=4)
    resumed = train(fit, regression([2.0]), tmp_path, max_steps=6, ckpt_path=first.last_model_path)
    assert files(tmp_path) == {"NEST--val_loss=1.000-step=4.ckpt", "NEST--val_loss=2.000-step=6-last.ckpt"}
    assert resumed.best_model_path == first.best_model_path


def test_a_resumed_run_ignores_best_checkpoints_that_no_longer_exist(fit: Any, regression: Any, tmp_path: Path) -> None:
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


def test_the_last_checkpoint_is_saved_after_every_validation(fit: Any, regression: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="power cut"):
        train(fit, regression([1.0, 2.0]), tmp_path, RaiseAtStep(5, RuntimeError("power cut")))
    assert files(tmp_path) == {"NEST--val_loss=1.000-step=2.ckpt", "NEST--val_loss=2.000-step=4-last.ckpt"}


def test_an_interrupted_run_saves_its_state(fit: Any, regression: Any, tmp_path: Path) -> None:
    with pytest.raises(SIGTERMException):
        train(fit, regression([3.0, 1.0]), tmp_path, RaiseAtStep(3, SIGTERMException()))
    assert "NEST--val_loss=3.000-step=3-last.ckpt" in files(tmp_path)


class Payload:
    ran = False

    def __reduce__(self) -> tuple:
        return setattr, (Payload, "ran", True)


def test_resuming_never_runs_code_in_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": {}, "extra": Payload()}, path)
    with pytest.raises(CheckpointError):
        CheckpointFiles().load_checkpoint(path)
    assert not Payload.ran


def test_the_archive_is_written_once_after_every_checkpoint(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    model = regression([3.0, 2.0, 1.0])
    train(fit, model, tmp_path, settings={"always_save_nemo": True, "save_nemo_on_train_end": True})
    assert len(archives) == 3
    assert math.isclose(archives[-1], float(model.layer.weight.detach().sum()))


class FullDisk(Callback):
    """Imitates a disk that is full during the steps of this range."""

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
def test_on_a_full_disk_the_run_continues_and_the_previous_checkpoint_stays(
    background: bool,
    fit: Any,
    regression: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses, disk = [5.0, 4.0, 3.0, 2.0], FullDisk(monkeypatch, range(4, 8))  # background saving may be a step late
    stop = RaiseAtStep(7, RuntimeError("power cut"))
    with pytest.raises(RuntimeError, match="power cut"):
        train(fit, regression(losses), tmp_path, disk, stop, max_steps=8, settings={"async_save": background})
    assert files(tmp_path) == {"NEST--val_loss=5.000-step=2.ckpt", "NEST--val_loss=5.000-step=2-last.ckpt"}
    assert "No space left on device; training continues, the newest is" in caplog.text

    disk.full = range(0)
    disk = FullDisk(monkeypatch, range(4, 7))
    train(fit, regression(losses), tmp_path / "on", disk, max_steps=8, settings={"async_save": background})
    assert files(tmp_path / "on") == {"NEST--val_loss=2.000-step=8.ckpt", "NEST--val_loss=2.000-step=8-last.ckpt"}


def test_a_full_disk_stops_the_run_if_configured(
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


def test_background_saving_writes_the_same_files(fit: Any, regression: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    train(fit, regression([3.0, 1.0, 2.0]), tmp_path / "at once")
    torch.manual_seed(0)
    train(fit, regression([3.0, 1.0, 2.0]), tmp_path / "later", settings={"async_save": True})
    assert files(tmp_path / "later") == files(tmp_path / "at once")
    for name in files(tmp_path / "later"):
        ours, theirs = (torch.load(tmp_path / run / "checkpoints" / name) for run in ("later", "at once"))
        assert ours["global_step"] == theirs["global_step"]
        assert torch.equal(ours["state_dict"]["layer.weight"], theirs["state_dict"]["layer.weight"])


def test_the_archive_of_the_best_model_is_not_replaced_by_later_weights(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    settings = {"save_best_model": True, "save_nemo_on_train_end": True}
    checkpoint = train(fit, regression([3.0, 1.0, 2.0]), tmp_path, settings=settings)
    best = torch.load(checkpoint.best_model_path, weights_only=True)["state_dict"]["layer.weight"]
    assert archives == [float(best.sum())]


def test_by_default_the_archive_is_written_only_at_the_end(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    train(fit, regression([3.0, 2.0, 1.0]), tmp_path, settings={"save_nemo_on_train_end": True})
    assert len(archives) == 1
    assert "NEST.nemo" in files(tmp_path)


SAVE_AT_END = {"save_nemo_on_train_end": True}


def test_the_next_start_writes_an_archive_that_could_not_be_written(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    first = train(fit, regression([3.0, 2.0, 1.0]), tmp_path, settings=SAVE_AT_END)
    longer = {"max_steps": 8, "ckpt_path": first.last_model_path, "settings": SAVE_AT_END}
    with monkeypatch.context() as disk:
        disk.setattr(checkpoints, "write_nemo", full)
        with pytest.raises(CheckpointError, match="the end of the run could not be saved"):
            train(fit, regression([0.9]), tmp_path, **longer)
    (last,) = (tmp_path / "checkpoints").glob("*-last.ckpt")
    assert step_of(last) == 8
    assert len(archives) == 1
    model = regression()
    train(fit, model, tmp_path, max_steps=8, ckpt_path=last, settings=SAVE_AT_END)  # nothing left to train
    assert math.isclose(archives[-1], float(model.layer.weight.detach().sum()))
    assert len(archives) == 2


def test_an_archive_of_an_earlier_run_is_replaced_even_at_the_same_step(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    first = train(fit, regression([3.0, 2.0, 1.0]), tmp_path)
    (tmp_path / "checkpoints" / "NEST.nemo").write_text("of another run")
    stop, longer = RaiseAtStep(7, SIGTERMException()), {"max_steps": 8, "ckpt_path": first.last_model_path}
    with pytest.raises(SIGTERMException):
        train(fit, regression([]), tmp_path, stop, settings=SAVE_AT_END, **longer)
    assert archives == []
    (last,) = (tmp_path / "checkpoints").glob("*-last.ckpt")
    train(fit, regression([]), tmp_path, max_steps=7, ckpt_path=last, settings=SAVE_AT_END)
    assert len(archives) == 1


def test_writing_the_best_archive_does_not_change_the_model(
    fit: Any, regression: Any, tmp_path: Path, archives: list[float]
) -> None:
    model = regression([3.0, 1.0, 2.0])
    checkpoint = train(fit, model, tmp_path, settings={"save_best_model": True, **SAVE_AT_END})
    last = torch.load(checkpoint.last_model_path, weights_only=True)["state_dict"]["layer.weight"]
    assert torch.equal(model.layer.weight, last)  # a sharded model could not load other weights
    assert archives != [float(last.sum())]


def test_an_unreadable_best_checkpoint_counts_as_a_failed_save_at_the_end(
    fit: Any, regression: Any, tmp_path: Path
) -> None:
    class Damage(Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 5:
                Path(trainer.checkpoint_callback.best_model_path).write_bytes(b"nothing")  # type: ignore[union-attr]

    settings = {"save_best_model": True, **SAVE_AT_END}
    with pytest.raises(CheckpointError, match=r"the end of the run could not be saved: .*step=4\.ckpt: damaged"):
        train(fit, regression([3.0, 1.0, 2.0]), tmp_path, Damage(), settings=settings)


class Stream(IterableDataset):
    """A stream of three batches without a length."""

    def __iter__(self) -> Any:
        return iter(torch.ones(3, 2))


@pytest.mark.parametrize("interval", [2, 4])  # with and without a validation at the end
@pytest.mark.parametrize("end", [{"max_epochs": 2, "max_steps": -1}, {"max_steps": 6}])
def test_a_finished_run_over_data_of_unknown_length_stays_finished(
    interval: int, end: dict[str, int], fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "train_dataloader", lambda _: DataLoader(Stream(), batch_size=1))
    schedule = {"val_check_interval": interval, "check_val_every_n_epoch": None, **end}
    first = train(fit, regression([3.0, 2.0, 1.0]), tmp_path, **schedule)
    assert step_of(first.last_model_path) == 6
    train(fit, regression([1.0]), tmp_path, ckpt_path=first.last_model_path, **schedule)
    assert files(tmp_path) == {Path(first.best_model_path).name, Path(first.last_model_path).name}


def test_a_run_over_data_of_unknown_length_resumes_within_an_epoch(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "train_dataloader", lambda _: DataLoader(Stream(), batch_size=1))
    schedule = {"val_check_interval": 2, "check_val_every_n_epoch": None}
    first = train(fit, regression([3.0, 2.0]), tmp_path, max_steps=5, **schedule)
    assert torch.load(first.last_model_path, weights_only=True)["epoch"] == 1


def test_a_run_with_more_epochs_continues_with_the_data_of_the_next_epoch(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches(folder: str, *epochs: int) -> list[float]:
        """Return the batches of a run that ends after each of these numbers of epochs and is continued to the next."""
        torch.manual_seed(1)
        trained_on: list[float] = []

        class Note(Callback):
            def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
                trained_on.append(float(batch[0, 0]))

        last = None
        for count in epochs:
            end = {"max_epochs": count, "max_steps": -1, "val_check_interval": 1.0, "limit_val_batches": 0}
            settings = {"monitor": "train_loss"}
            last = train(
                fit, regression(), tmp_path / folder, Note(), ckpt_path=last, settings=settings, **end
            ).last_model_path
        return trained_on

    numbers = torch.arange(10.0)[:, None].expand(10, 2)
    monkeypatch.setattr(regression, "train_dataloader", lambda _: ResumableLoader(numbers, shuffle=True))
    assert batches("parts", 1, 3) == batches("whole", 3)


def test_the_next_start_removes_the_unfinished_checkpoint_of_a_killed_run(
    fit: Any, regression: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    killed = folder / ".NEST--val_loss=9.000-step=1-last.ckpt.0123abcd.tmp"
    others = folder / ".notes.txt.0123abcd.tmp"
    for path in (killed, others):
        path.write_bytes(b"half")
        os.utime(path, (1e9, 1e9))
    train(fit, regression([3.0]), tmp_path, max_steps=2)
    assert not killed.exists()
    assert others.exists()


def test_a_best_checkpoint_that_a_killed_run_had_not_recorded_is_written_again(
    fit: Any, regression: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_last = RunCheckpoint._save_last_checkpoint

    def die_at_step_4(self: RunCheckpoint, trainer: pl.Trainer, *more: Any) -> None:
        if trainer.global_step == 4:
            raise RuntimeError("killed between best and last")
        save_last(self, trainer, *more)

    settings = {"save_top_k": 3}
    with monkeypatch.context() as killed:
        killed.setattr(RunCheckpoint, "_save_last_checkpoint", die_at_step_4)
        with pytest.raises(RuntimeError, match="killed"):
            train(fit, regression([3.0, 2.0]), tmp_path, settings=settings)
    (last,) = (tmp_path / "checkpoints").glob("*-last.ckpt")
    assert step_of(last) == 2
    resumed = train(fit, regression([2.0, 1.0]), tmp_path, ckpt_path=last, settings=settings)
    best = {f"NEST--val_loss={loss}.000-step={step}.ckpt" for loss, step in ((3, 2), (2, 4), (1, 6))}
    assert files(tmp_path) == {*best, "NEST--val_loss=1.000-step=6-last.ckpt"}
    assert {Path(path).name for path in resumed.best_k_models} == best


def test_existing_files_keep_their_content(fit: Any, regression: Any, tmp_path: Path) -> None:
    first = train(fit, regression([3.0]), tmp_path, max_steps=2)
    name = "NEST--val_loss=2.000-step=4.ckpt"
    mine = tmp_path / "checkpoints" / name
    mine.write_text("mine")
    os.utime(mine, (1e9, 1e9))
    train(fit, regression([2.0]), tmp_path, max_steps=4, ckpt_path=first.last_model_path)
    assert mine.read_text() == "mine"
    assert "NEST--val_loss=2.000-step=4-v1.ckpt" in files(tmp_path)


def test_paths_outside_the_folder_in_a_checkpoint_are_ignored(tmp_path: Path) -> None:
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
