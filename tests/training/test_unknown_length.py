"""Data without a length: a missing number gives a one-line error."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
from torch.utils.data import DataLoader

from nest_ssl.data.lhotse.cut_batches import CutBatches
from nest_ssl.data.lhotse.cut_sets import CutSource
from nest_ssl.data.lhotse.loader import CutLoader
from nest_ssl.errors import ConfigError
from nest_ssl.training.run_length import check_limits


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(accelerator="cpu", **quiet, **options)


def loader(endless: bool) -> CutLoader:
    return CutLoader([1], batch_size=None, sampler=CutBatches(None, CutSource([], endless=endless), "model.train_ds"))


@pytest.mark.parametrize(
    ("options", "endless", "message"),
    [
        ({"limit_train_batches": 0.5, "max_steps": 3}, False, r"trainer\.limit_train_batches: is 0\.5, but lhotse"),
        ({"val_check_interval": 0.5, "max_steps": 3}, False, r"val_check_interval: is 0\.5, .*whole number of steps"),
        ({"val_check_interval": 1.0, "max_steps": 3}, True, r"val_check_interval: is 1\.0, but .*no end"),
        ({"max_epochs": 3, "val_check_interval": 5}, True, r"max_steps: is -1, but the training data has no end"),
    ],
)
def test_a_share_of_an_unknown_length_is_refused(options: dict[str, Any], endless: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_limits(trainer(**options), loader(endless), [])


@pytest.mark.parametrize(("endless", "limit"), [(True, 1.0), (False, 0.5)])
def test_endless_validation_data_needs_a_limit(endless: bool, limit: float) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.limit_val_batches: is .*whole number of batches"):
        check_limits(trainer(limit_val_batches=limit), DataLoader([1]), [DataLoader([1]), loader(endless)])


@pytest.mark.parametrize(
    ("options", "endless"),
    [
        ({"max_epochs": 3}, False),
        ({"max_steps": 3, "val_check_interval": 5}, True),
        ({"max_steps": 3, "limit_val_batches": 0}, True),
        ({"max_epochs": 3, "limit_train_batches": 100, "val_check_interval": 0.5}, True),
        ({"max_epochs": -1, "limit_val_batches": 2, "val_check_interval": 7}, True),
    ],
)
def test_explicit_numbers_are_sufficient(options: dict[str, Any], endless: bool) -> None:
    check_limits(trainer(**options), loader(endless), [loader(endless)] if "limit_val_batches" in options else [])
