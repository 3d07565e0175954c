"""A recording of our own model, small enough to make for every test module."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nest_ssl.apps.alignment import nest_side
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus

ROOT = Path(__file__).parents[3]
SMALL = [
    *("model.encoder.n_layers=1", "model.encoder.d_model=32", "model.encoder.n_heads=2", "model.num_classes=32"),
    *("model.encoder.subsampling_conv_channels=8", "model.masking.mask_prob=0.05", "model.train_ds.max_duration=4"),
    *("model.optim.lr=0.1", "model.optim.sched.warmup_steps=10", "trainer.limit_val_batches=0", "seed=7"),
    *("trainer.max_steps=2", "trainer.enable_progress_bar=false", "model.preprocessor.dither=0"),
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=8, val=2, noise=2)


@pytest.fixture(scope="session")
def record(corpus: DummyCorpus) -> Callable[..., Path]:
    """Return a function that trains a small model as `train_with_saver.py` does, and returns its recording's folder."""

    def record(folder: Path, *overrides: str) -> Path:
        data = [f"model.train_ds.manifest_filepath={corpus.train_manifest}", "model.validation_ds=null"]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            argv = [*SMALL, *data, f"output_dir={folder}", *overrides]
            assert nest_side.main(argv, config_dir=ROOT / "config") == 0
        finally:
            torch.set_num_threads(threads)
        return folder

    return record


@pytest.fixture(scope="session")
def recorded(record: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of two steps, shared by all tests: read only."""
    return record(tmp_path_factory.mktemp("recording") / "ours", "save_steps=0-1")


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the shared recording, which a test may change."""
    return Path(shutil.copytree(recorded, tmp_path / "copy"))
