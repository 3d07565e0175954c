"""A small corpus, and configurations that train on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nest_ssl.config.command_line import CommandLine
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus

CONFIG = Path(__file__).parents[3] / "config"
SMALL = [
    "model.encoder.n_layers=1",
    "model.encoder.d_model=32",
    "model.encoder.n_heads=2",
    "model.encoder.subsampling_conv_channels=8",
    "model.num_classes=32",
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=12, val=2, noise=1)


@pytest.fixture
def data(corpus: DummyCorpus, tmp_path: Path) -> list[str]:
    """Return overrides that choose this corpus, a small model, and a folder for the run."""
    return [
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        f"exp_manager.exp_dir={tmp_path / 'runs'}",
        *SMALL,
    ]


@pytest.fixture
def command(data: list[str]) -> Callable[..., CommandLine]:
    def make(*overrides: str, name: str = "nest_fast-conformer") -> CommandLine:
        return CommandLine(CONFIG, name, [*data, *overrides])

    return make
