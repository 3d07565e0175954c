"""Models that train in milliseconds, for tests of everything around the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from nest_ssl.data import AudioNoiseBatch
from nest_ssl.data.batch import AudioNoiseItem, collate_audio_noise


class Regression(pl.LightningModule):
    """One linear layer that reports the given validation losses in their order."""

    cfg = None  # the configuration in an archive
    step_skipped = False

    def __init__(self, val_losses: Sequence[float] = (), samples: int = 6) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.val_losses = list(val_losses)
        self.samples = samples

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.layer(batch).square().mean()
        self.shown_loss = loss.detach()
        self.log_dict({"train_loss": self.shown_loss, "learning_rate": 0.1}, on_step=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        return

    def on_validation_epoch_end(self) -> None:
        if self.val_losses:
            self.log("val_loss", self.val_losses.pop(0))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(torch.ones(self.samples, 2), batch_size=1)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader:
        return DataLoader(torch.ones(1, 2))  # type: ignore[arg-type]


class Clock:
    """A clock that advances only by `sleep`, so that measured times are exact on a busy machine, too."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


class Clips(Dataset):
    """Utterances of 1, 2, 3 ... seconds, each of which takes `loading` seconds to load."""

    def __init__(self, count: int, loading: float) -> None:
        self.count, self.loading = count, loading

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> AudioNoiseItem:
        CLOCK.sleep(self.loading)
        signal, length = torch.ones(16000 * (index + 1)), torch.tensor(16000 * (index + 1))
        return AudioNoiseItem(sample_id=str(index), audio=signal, audio_len=length, noise=signal, noise_len=length)


class Speech(Regression):
    """A model for batches of audio; loading an utterance, a step and a validation take the given times."""

    def __init__(self, clips: int = 4, loading: float = 0.0, step: float = 0.0, validation: float = 0.0) -> None:
        super().__init__()
        self.clips, self.loading, self.step, self.validation = clips, loading, step, validation

    def training_step(self, batch: AudioNoiseBatch, batch_idx: int) -> Tensor:
        CLOCK.sleep(self.step)
        return super().training_step(batch.audio[:, :2], batch_idx)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        CLOCK.sleep(self.validation)

    def train_dataloader(self) -> DataLoader:
        clips = Clips(self.clips, self.loading)
        return DataLoader(clips, batch_size=2, collate_fn=lambda items: collate_audio_noise(items, None))


@pytest.fixture
def fit() -> Callable[..., pl.Trainer]:
    """Return a function that trains a model on the CPU without output and returns the trainer."""

    def fit(model: pl.LightningModule, ckpt_path: Any = None, **arguments: Any) -> pl.Trainer:
        quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = pl.Trainer(**{"enable_checkpointing": False, "num_sanity_val_steps": 0, **quiet, **arguments})
        trainer.fit(model, ckpt_path=ckpt_path)
        return trainer

    return fit


@pytest.fixture
def regression() -> type[Regression]:
    return Regression


@pytest.fixture
def clock() -> Clock:
    """The clock of `speech`."""
    return CLOCK


@pytest.fixture
def speech() -> type[Speech]:
    return Speech
