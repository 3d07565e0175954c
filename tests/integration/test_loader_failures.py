"""Loader processes that die or hang: a run ends in time, with one line that says what and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from tests.integration.conftest import SMALL

RUN = Path(__file__).with_name("misbehaving_run.py")
SETTINGS = [
    *(
        "seed=1",
        "trainer.devices=1",
        "trainer.accelerator=cpu",
        "trainer.strategy=auto",
        "trainer.val_check_interval=4",
    ),
    *("exp_manager.create_tensorboard_logger=false", "exp_manager.log_samples=false", "model.train_ds.batch_size=2"),
    "trainer.enable_progress_bar=false",
]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the run is made to fail by Linux's means")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("data"), train=8, val=2, noise=2)


class Run:
    """A run in a process of its own, in a folder of its own, whose loaders can be made to misbehave."""

    def __init__(self, folder: Path, corpus: DummyCorpus, *overrides: str) -> None:
        self.folder = folder
        command = [
            *(sys.executable, str(RUN), *SMALL, *SETTINGS),
            f"model.train_ds.manifest_filepath={corpus.train_manifest}",
            f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
            *overrides,
        ]
        variables = {f"MISBEHAVE_{name.upper()}": str(folder / name) for name in ("die", "hang")}
        path = str(Path(__file__).parents[2])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
        with (folder / "out.txt").open("w") as out, (folder / "err.txt").open("w") as err:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err)

    def wait_for_checkpoint(self) -> None:
        deadline = time.monotonic() + 300
        while self.last_step() is None:
            assert self.process.poll() is None, self.errors
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def last_step(self) -> int | None:
        names = [path.name for path in self.folder.rglob("*-last.ckpt")]
        steps = [int(found[1]) for name in names if (found := re.search(r"step=(\d+)", name))]
        return max(steps) if steps else None

    def misbehave(self, how: str) -> None:
        (self.folder / how).touch()

    @property
    def errors(self) -> str:
        return (self.folder / "err.txt").read_text()

    @property
    def output(self) -> str:
        return (self.folder / "out.txt").read_text()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        run.process.kill()
        run.process.wait()


def test_a_loader_process_that_is_killed_is_one_line(corpus: DummyCorpus, tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, corpus, "trainer.max_steps=100000", "model.train_ds.num_workers=1")
    runs.append(run)
    run.wait_for_checkpoint()
    run.misbehave("die")
    code = run.process.wait(timeout=300)
    expected = (
        r"error: a loader process \([\d, ]+\) died at step \d+( of the signal 'Killed')?: most often the machine's "
        r"memory is full; lower model\.train_ds\.num_workers, prefetch_factor or batch_size; the same command goes on "
        r"from the last checkpoint\n"
    )
    assert re.fullmatch(expected, run.errors)
    assert code == 2
