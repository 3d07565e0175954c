"""The computed number of optimizer steps equals the number that Lightning takes."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from nest_ssl.training.run_length import steps_in_run


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stream(IterableDataset):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter([torch.zeros(1)])


def trainer(**options: object) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(accelerator="cpu", devices=1, enable_model_summary=False, **quiet, **options)  # type: ignore[arg-type]


def loader(samples: int = 23, batch_size: int = 4, drop_last: bool = False) -> DataLoader:
    return DataLoader(TensorDataset(torch.zeros(samples, 1)), batch_size=batch_size, drop_last=drop_last)


@pytest.mark.parametrize(
    ("options", "drop_last"),
    [
        ({"max_epochs": 2}, False),
        ({"max_epochs": 2}, True),
        ({"max_epochs": 3, "accumulate_grad_batches": 4}, False),
        ({"max_epochs": 2, "limit_train_batches": 3}, False),
        ({"max_epochs": 2, "limit_train_batches": 0.5}, True),
        ({"max_epochs": 2, "limit_train_batches": 1, "accumulate_grad_batches": 2}, True),
        ({"max_steps": 5}, False),
    ],
)
def test_the_number_of_steps_equals_that_of_lightning(options: dict, drop_last: bool) -> None:
    run = trainer(**options)
    data = loader(drop_last=drop_last)
    expected = steps_in_run(run, data)
    run.fit(Model(), data)
    assert run.global_step == expected


def test_the_number_comes_from_the_trainer_then_the_schedule_then_the_epochs() -> None:
    schedule = {"max_steps": 7}
    assert steps_in_run(trainer(max_steps=9), loader(), schedule) == 9
    assert steps_in_run(trainer(max_epochs=1), loader(), schedule) == 7
    assert steps_in_run(trainer(max_epochs=1), loader(), {"max_steps": None}) == 6


def test_a_run_without_a_known_end_has_no_number() -> None:
    assert steps_in_run(trainer(max_epochs=-1), loader()) is None
    assert steps_in_run(trainer(max_epochs=1), None) is None
    assert steps_in_run(trainer(max_epochs=1), DataLoader(Stream(), batch_size=1)) is None


def test_ranks_share_the_samples() -> None:
    run = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False)
    assert steps_in_run(run, loader(samples=23, batch_size=4, drop_last=True)) == 3  # 12 samples per rank
