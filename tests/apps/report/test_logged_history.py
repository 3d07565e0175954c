"""The report reads the event files of a run's logger, also after a full disk and after tags were renamed."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from nest_ssl.apps.report.events import read_history
from nest_ssl.training.loggers.tensorboard import PatientTensorBoardLogger
from tests.training.loggers.test_tensorboard import Disk, log


def test_a_run_whose_disk_was_full_for_a_while_has_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, logger = Disk(monkeypatch), PatientTensorBoardLogger(tmp_path, "", "")
    log(logger, range(1, 4))
    disk.full = True
    log(logger, range(4, 7))
    assert read_history([tmp_path]).series["loss"].steps.tolist() == [1, 2, 3]
    disk.full = False
    log(logger, range(7, 9))
    logger.finalize("success")
    series = read_history([tmp_path]).series["loss"]
    assert series.steps.tolist() == [*range(1, 9)]
    assert series.values.tolist() == [step / 2 for step in range(1, 9)]


def test_tags_with_and_without_groups_make_one_curve(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "run_0")) as former:
        former.add_scalar("val_accuracy", 0.1, 1, walltime=1.0)
        former.add_scalar("codebook_0/target_coverage", 0.3, 1, walltime=1.0)
    logger = PatientTensorBoardLogger(tmp_path, name="", version="")
    logger.log_metrics({"val_accuracy": 0.2, "codebook_0/target_coverage": 0.4, "val_loss": 3.0}, 2)
    logger.finalize("success")
    history = read_history([tmp_path / "run_0", tmp_path])
    assert set(history.series) == {"val_accuracy", "codebook_0/target_coverage", "val_loss"}
    accuracy, coverage = history.series["val_accuracy"], history.series["codebook_0/target_coverage"]
    assert accuracy.steps.tolist() == coverage.steps.tolist() == [1, 2]
    assert accuracy.values.tolist() == pytest.approx([0.1, 0.2])
    assert coverage.values.tolist() == pytest.approx([0.3, 0.4])
