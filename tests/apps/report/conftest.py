"""A run folder written by a real training, shared by all tests of the report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.training.run import main
from tests.integration.conftest import SMALL

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was started twice, to steps 4 and 8; tests must not write into its folder."""
    folder = tmp_path_factory.mktemp("trained")
    corpus = make_dummy_corpus(folder / "data", train=8, val=2, noise=2)
    arguments = [
        *SMALL,
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        *("trainer.log_every_n_steps=1", "trainer.val_check_interval=2", "model.train_ds.num_workers=0"),
        *(f"exp_manager.exp_dir={folder}", "seed=1", "trainer.enable_progress_bar=false"),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for steps in (4, 8):
            assert main([*arguments, f"trainer.max_steps={steps}"], config_dir=ROOT / "config") == 0
    finally:
        torch.set_num_threads(threads)
    return folder / "SSL-NEST-FastConformer"
