"""A run that is killed at any moment, and started again by the same command, ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from tests.integration.conftest import SMALL

ROOT = Path(__file__).parents[2]
SETTINGS = ["seed=1", "trainer.max_steps=40", "trainer.val_check_interval=3", "model.train_ds.batch_size=2"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=17, val=2, noise=2)


def start(folder: Path, corpus: DummyCorpus, overrides: list[str]) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    manifests = [
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.train_ds.noise_manifest={corpus.noise_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        f"model.validation_ds.noise_manifest={corpus.noise_manifest}",
    ]
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, *SETTINGS, *manifests, *overrides]
    with (folder / "log.txt").open("ab") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment)


def finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    assert process.wait(timeout=300) == 0, (folder / "log.txt").read_text()


def newest_checkpoint(folder: Path) -> Path | None:
    found = sorted(folder.rglob("*last.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    return found[-1] if found else None


def written_at(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # replaced this very moment
        path = newest_checkpoint(folder)
        return path.stat().st_mtime_ns if path is not None else 0
    return 0


def result(folder: Path) -> dict[str, Any]:
    path = newest_checkpoint(folder)
    assert path is not None
    content = load_lightning_checkpoint(path)
    return {name: content[name] for name in ("state_dict", "optimizer_states", "lr_schedulers", "global_step")}


def differences(ours: Any, theirs: Any, name: str = "") -> list[str]:
    if isinstance(ours, torch.Tensor):
        return [] if torch.equal(ours, theirs) else [name]
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        return [found for key in ours for found in differences(ours[key], theirs[key], f"{name}.{key}")]
    if isinstance(ours, list | tuple):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [found for index, pair in pairs for found in differences(*pair, f"{name}.{index}")]
    return [] if ours == theirs else [name]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 on Windows")
@pytest.mark.parametrize(
    "overrides",
    [
        ["model.train_ds.num_workers=0", "model.validation_ds.num_workers=0"],
        ["model.train_ds.num_workers=2", "model.validation_ds.num_workers=0", "model.numerics=fast"],
    ],
    ids=["exact, no workers", "fast, two workers"],
)
def test_a_run_killed_at_random_ends_with_the_same_bits(
    overrides: list[str], corpus: DummyCorpus, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(whole, corpus, overrides), whole)
    draw = random.Random()
    kills = 0
    while True:
        process = start(killed, corpus, overrides)
        before = written_at(killed)
        while process.poll() is None and written_at(killed) == before:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 1.0))
        if kills == 2 or process.poll() is not None:
            finish(process, killed)
            break
        process.kill()
        process.wait()
        kills += 1
    assert kills >= 1
    assert result(whole)["global_step"] == 40
    assert differences(result(killed), result(whole)) == []
