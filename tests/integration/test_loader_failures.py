"""Workers that die or hang: the run ends soon, with one line that names the cause and a remedy."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nest_ssl.checkpoint import load_lightning_checkpoint
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
]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the run is made to fail by Linux's means")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("data"), train=200, val=2, noise=2)


class Run:
    """A run in a new process and a new folder, whose workers can be made to die or hang."""

    def __init__(self, folder: Path, corpus: DummyCorpus, *overrides: str) -> None:
        self.folder = folder
        command = [
            *(sys.executable, str(RUN), *SMALL, *SETTINGS),
            f"model.train_ds.manifest_filepath={corpus.train_manifest}",
            f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
            *overrides,
        ]
        variables = {f"MISBEHAVE_{name.upper()}": str(folder / name) for name in ("die", "hang")}
        variables["MISBEHAVE_PATIENCE"] = "3"
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


def test_a_killed_worker_gives_one_line(corpus: DummyCorpus, tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, corpus, "trainer.max_steps=100000", "model.train_ds.num_workers=1")
    runs.append(run)
    run.wait_for_checkpoint()
    run.misbehave("die")
    code = run.process.wait(timeout=300)
    expected = (
        r"error: a loader process \([\d, ]+\) died at step \d+( of the signal 'Killed')?: most often the machine's "
        r"memory is full; lower model\.train_ds\.num_workers, prefetch_factor or batch_size; the same command "
        r"continues from the last checkpoint\n"
    )
    assert re.fullmatch(expected, run.errors)
    assert code == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_one_sigterm_saves_and_ends_a_run_whose_worker_hangs(
    workers: int, corpus: DummyCorpus, tmp_path: Path, runs: list[Run]
) -> None:
    run = Run(tmp_path, corpus, "trainer.max_steps=100000", "trainer.val_check_interval=1000", *no_epochs(workers))
    runs.append(run)
    deadline = time.monotonic() + 300
    while "step 2/" not in run.output and "step 1/" not in run.output:
        assert run.process.poll() is None, run.errors
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.misbehave("hang")
    time.sleep(5)  # until the prepared batches are used; on a busy machine, one more step follows
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(timeout=120) == 143, run.errors
    assert run.errors == ""
    stopped = re.search(r"stopped by SIGTERM at step (\d+)", run.output)
    assert stopped is not None, run.output
    assert run.last_step() == int(stopped[1])
    (tmp_path / "hang").unlink()
    goes_on = Run(tmp_path, corpus, f"trainer.max_steps={int(stopped[1]) + 2}", *no_epochs(workers))
    runs.append(goes_on)
    assert goes_on.process.wait(timeout=300) == 0, goes_on.errors
    whole_folder = tmp_path / "whole"
    whole_folder.mkdir()
    whole = Run(whole_folder, corpus, f"trainer.max_steps={int(stopped[1]) + 2}", *no_epochs(workers))
    runs.append(whole)
    assert whole.process.wait(timeout=300) == 0, whole.errors
    ours, theirs = (weights(folder) for folder in (tmp_path / "nest_experiments", whole_folder))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "settings",
    [
        ["model.train_ds.num_workers=0"],
        ["model.train_ds.num_workers=1", "model.validation_ds.num_workers=0", "trainer.val_check_interval=1"],
    ],
    ids=["training", "validation"],
)
def test_one_sigterm_ends_a_run_whose_main_process_hangs(
    settings: list[str], corpus: DummyCorpus, tmp_path: Path, runs: list[Run]
) -> None:
    run = Run(tmp_path, corpus, "trainer.max_steps=100000", *settings)
    runs.append(run)
    run.wait_for_checkpoint()
    run.misbehave("hang")
    time.sleep(5)  # until it hangs; on a busy machine, it hangs after the signal or stops before
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(timeout=120) == 143
    assert "leaves without saving" in run.errors + run.output or "stopped by SIGTERM" in run.output
    assert run.last_step() is not None


def no_epochs(workers: int) -> list[str]:
    """Return settings with which no epoch ends and no validation runs, so that no checkpoint is due."""
    return [
        *(f"model.train_ds.num_workers={workers}", "model.validation_ds.num_workers=0", "model.train_ds.batch_size=1"),
        *("trainer.limit_val_batches=0", "trainer.num_sanity_val_steps=0", "trainer.log_every_n_steps=1"),
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (last,) = folder.rglob("*-last.ckpt")
    return load_lightning_checkpoint(last)["state_dict"]
