"""Two runs in one folder: the second is refused with the name of the first; a killed run does not hold the folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.folder_lock import LOCK
from tests.integration.conftest import SMALL

ROOT = Path(__file__).parents[2]
SETTINGS = [
    *("trainer.devices=1", "trainer.accelerator=cpu", "trainer.strategy=auto", "trainer.val_check_interval=2"),
    *("trainer.limit_val_batches=1", "exp_manager.create_tensorboard_logger=false", "exp_manager.log_samples=false"),
    *("model.train_ds.batch_size=2", "model.train_ds.num_workers=1", "model.validation_ds.num_workers=0"),
]
Run = subprocess.Popen[str]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("data"), train=8, val=2, noise=2)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        run.kill()
        run.wait()


def start(runs: list[Run], folder: Path, corpus: DummyCorpus, *overrides: str) -> Run:
    command = [
        *(sys.executable, str(ROOT / "train.py"), *SMALL, *SETTINGS),
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        *overrides,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    runs.append(run)
    return run


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of the files directly in the folder, except for the lock, which is updated regularly."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != LOCK}


def test_the_same_run_started_twice(corpus: DummyCorpus, tmp_path: Path, runs: list[Run]) -> None:
    folder = tmp_path / "nest_experiments" / "SSL-NEST-FastConformer"
    first = start(runs, tmp_path, corpus, "trainer.max_steps=100000")
    deadline = time.monotonic() + 300
    while not list(folder.glob("checkpoints/*-last.ckpt")):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    before = content(folder)
    second = start(runs, tmp_path, corpus, "trainer.max_steps=1")
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 2
    assert errors.count("\n") == 1
    assert f"{folder}: is in use by process {first.pid} on " in errors
    assert "wait for its end, or give this run a folder of its own (exp_manager.name, exp_dir)" in errors
    assert content(folder) == before
    assert not (folder / "run_0").exists()
    assert first.poll() is None
    first.kill()
    first.wait()
    steps = max(load_lightning_checkpoint(path)["global_step"] for path in folder.glob("checkpoints/*-last.ckpt"))
    third = start(runs, tmp_path, corpus, f"trainer.max_steps={steps + 1}")  # at once
    _, errors = third.communicate(timeout=300)
    assert third.returncode == 0, errors
    assert (folder / "run_0" / "config.yaml").read_bytes() == before["config.yaml"]
    assert not (folder / LOCK).exists()


def test_two_runs_do_not_share_a_folder_of_checkpoints(corpus: DummyCorpus, tmp_path: Path, runs: list[Run]) -> None:
    from nest_ssl.folder_lock import lock_folder

    with lock_folder(tmp_path / "shared", "wait"):
        other = start(
            *(runs, tmp_path, corpus, "trainer.max_steps=1", "exp_manager.name=other"),
            f"exp_manager.checkpoint_callback_params.dirpath={tmp_path / 'shared'}",
        )
        _, errors = other.communicate(timeout=300)
    assert f"{tmp_path / 'shared'}: is in use by process {os.getpid()} on " in errors
    assert not (tmp_path / "nest_experiments").exists()
