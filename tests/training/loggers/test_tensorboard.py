from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nest_ssl.training.experiment import plan_experiment
from nest_ssl.training.loggers import tensorboard
from nest_ssl.training.loggers.tensorboard import PatientTensorBoardLogger


class Disk:
    """Imitates a disk: while it is full, only half of each text is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        open_file = Path.open

        class HalfAFile(io.FileIO):
            def write(_, content: Any) -> int:
                super().write(bytes(content)[: len(content) // 2])
                raise OSError(28, "No space left on device")

        def open_if_there_is_space(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
            if self.full and mode != "r":
                return HalfAFile(path, mode)
            return open_file(path, mode, *arguments, **more)

        monkeypatch.setattr(Path, "open", open_if_there_is_space)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def logger(folder: Path) -> PatientTensorBoardLogger:
    return PatientTensorBoardLogger(folder, "", "")


def log(to: TensorBoardLogger, steps: range) -> None:
    for step in steps:
        to.log_metrics({"loss": step / 2}, step)
        to.save()


def logged(folder: Path) -> list[int]:
    """Return the steps that TensorBoard's reader finds."""
    scalars = EventAccumulator(str(folder)).Reload().Scalars("loss")
    assert [event.value for event in scalars] == [event.step / 2 for event in scalars]
    return [event.step for event in scalars]


def test_values_are_written_later_if_the_disk_was_full(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture, our_messages: Callable[[], list[str]]
) -> None:
    caplog.set_level("INFO")
    ours = logger(tmp_path)
    log(ours, range(1, 4))
    disk.full = True
    log(ours, range(4, 7))
    assert logged(tmp_path) == [1, 2, 3]
    disk.full = False
    log(ours, range(7, 9))
    ours.finalize("success")
    assert logged(tmp_path) == [*range(1, 9)]
    assert len(list(tmp_path.glob("events.*"))) == 1  # one file, as after one start
    first, second = our_messages()
    assert first.startswith("curves could not be written: [Errno 28] No space left on device; they wait in memory")
    assert second == "curves are written again"


def test_on_a_disk_that_stays_full_the_run_continues_without_curves(
    disk: Disk, fit: Any, regression: Any, tmp_path: Path, our_messages: Callable[[], list[str]]
) -> None:
    class FillTheDisk(Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            disk.full = trainer.global_step >= 3

    arguments = {"logger": logger(tmp_path), "max_steps": 6, "log_every_n_steps": 1, "limit_val_batches": 0}
    assert fit(regression(), callbacks=[FillTheDisk()], **arguments).global_step == 6
    assert "events that" in our_messages()[-1]
    assert len(EventAccumulator(str(tmp_path)).Reload().Scalars("train_loss")) == 3


def test_the_number_of_unwritten_values_is_limited(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "_MOST_WAITING", 1000)
    ours = logger(tmp_path)
    log(ours, range(1))
    disk.full = True
    log(ours, range(1, 500))
    disk.full = False
    log(ours, range(500, 501))
    steps = logged(tmp_path)
    assert len(steps) < 50
    assert steps[-1] == 500


def test_tensorboard_reads_the_same_as_from_its_own_writer(tmp_path: Path) -> None:
    for cls in (PatientTensorBoardLogger, TensorBoardLogger):
        one = cls(tmp_path / cls.__name__, "", "")
        one.log_hyperparams({"lr": 0.1})
        log(one, range(3))
        one.experiment.add_image("picture", np.zeros((4, 4, 3), np.uint8), 1, dataformats="HWC")
        one.finalize("success")
    ours, theirs = (EventAccumulator(str(folder)).Reload() for folder in sorted(tmp_path.iterdir()))
    assert ours.Tags() == theirs.Tags()
    assert [(e.step, e.value) for e in ours.Scalars("loss")] == [(e.step, e.value) for e in theirs.Scalars("loss")]
    assert (tmp_path / "PatientTensorBoardLogger" / "hparams.yaml").read_text() == "lr: 0.1\n"


def test_a_run_logs_with_this_logger(tmp_path: Path) -> None:
    node = {"explicit_log_dir": str(tmp_path), "summary_writer_kwargs": {"flush_secs": 3}}
    (only,) = plan_experiment(node, {}).loggers()
    assert isinstance(only, PatientTensorBoardLogger)
    assert only.experiment.flush_secs == 3
