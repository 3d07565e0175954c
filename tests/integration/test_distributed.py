"""Two processes train together: their data, the values that they share, and the end of one process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing import spawn

from nest_ssl.checkpoint import load_lightning_checkpoint, load_nemo
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.errors import NestError
from nest_ssl.training.trainer import refuse_different_weights
from tests.differences import differences
from tests.integration.conftest import SMALL
from tests.integration.test_resume import children, is_alive, newest_checkpoint, result
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
TWO = ["trainer.accelerator=cpu", "trainer.devices=2", "trainer.strategy=ddp"]
SHARDED = [*TWO[:2], "trainer.strategy=fsdp"]
STATELESS = ["model.optim.name=sgd", "~model.optim.betas"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    """A corpus with an odd number of utterances, so that two processes cannot share them evenly."""
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=11, val=3, noise=2)


def command(corpus: DummyCorpus, *overrides: str) -> list[str]:
    return [
        str(ROOT / "tests" / "integration" / "recording_run.py"),
        *SMALL,
        "seed=1",
        "model.train_ds.batch_size=2",
        "model.validation_ds.batch_size=1",
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        *overrides,
    ]


def start(folder: Path, words: list[str], **environment: str) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, stdout=log, stderr=log)


def run(folder: Path, words: list[str]) -> list[dict[str, Any]]:
    """Train to the end; return the records of each rank."""
    process = start(folder, words)
    assert process.wait(timeout=PATIENCE) == 0, (folder / "log.txt").read_text()
    return records(folder)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def seen(record: dict[str, Any], epoch: int) -> list[int]:
    return [index for batch in record["batches"] if batch["epoch"] == epoch for index in batch["ids"]]


@pytest.mark.parametrize("extra", [[], ["model.train_ds.batch_size=null", "model.train_ds.batch_duration=12"]])
def test_each_utterance_goes_to_one_process_and_none_waits_forever(
    extra: list[str], corpus: DummyCorpus, tmp_path: Path
) -> None:
    epochs = ["trainer.max_epochs=2", "trainer.max_steps=-1", "trainer.log_every_n_steps=1"]
    first, second = run(tmp_path, command(corpus, *TWO, *epochs, *extra))
    for epoch in (0, 1):
        ours, theirs = seen(first, epoch), seen(second, epoch)
        assert {*ours, *theirs} == set(range(11))
        assert len(ours) + len(theirs) <= 12  # one is used twice if they cannot be shared evenly
        assert len(first["batches"]) == len(second["batches"])
    assert first["val_losses"] == second["val_losses"]
    losses = [batch["loss"] for batch in first["batches"]]
    assert losses == [batch["loss"] for batch in second["batches"]]
    assert len({*losses}) > 1
    assert len(list(tmp_path.rglob("*last.ckpt"))) == 1
    assert (tmp_path / "log.txt").read_text().count("run folder: ") == 1


# without randomness, with all frames masked and statistics per utterance, two halves of a batch equal the whole
EQUAL_HALVES = [
    *("model.preprocessor.dither=0", "model.encoder.dropout=0", "model.encoder.dropout_pre_encoder=0"),
    *("model.encoder.dropout_att=0", "model.encoder.conv_norm_type=layer_norm", "model.masking.mask_prob=1.0"),
    *("model.train_ds.noise_manifest=null", "model.train_ds.batch_augmentor=null"),
    *(*STATELESS, "trainer.max_steps=5"),
]


def utterances_of_one_length(folder: Path, count: int) -> DummyCorpus:
    """Write utterances of one length, because otherwise the mean of the means of two halves is not the mean of all."""
    corpus = make_dummy_corpus(folder, train=count, val=2, noise=2)
    lines = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    shortest = min(line["duration"] for line in lines)
    corpus.train_manifest.write_text("".join(json.dumps({**line, "duration": shortest}) + "\n" for line in lines))
    return corpus


@pytest.mark.parametrize(
    "two",
    [TWO, SHARDED, [*SHARDED, "model.numerics=fast"]],
    ids=["ddp", "fsdp", "fsdp, fast"],
)
def test_two_processes_equal_one_with_twice_the_batch(two: list[str], tmp_path: Path) -> None:
    corpus = utterances_of_one_length(tmp_path / "corpus", 8)
    run(tmp_path / "two", command(corpus, *two, *EQUAL_HALVES, "model.train_ds.batch_size=4"))
    run(tmp_path / "one", command(corpus, *EQUAL_HALVES, "model.train_ds.batch_size=8"))
    ours, theirs = result(tmp_path / "two")["state_dict"], result(tmp_path / "one")["state_dict"]
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    "two", [TWO, SHARDED, [*SHARDED, *STATELESS]], ids=["ddp", "fsdp", "fsdp, an optimizer without a state"]
)
def test_a_run_of_two_processes_resumes_bit_for_bit(two: list[str], corpus: DummyCorpus, tmp_path: Path) -> None:
    words = command(corpus, *two, "trainer.val_check_interval=2", "trainer.max_steps=8")
    run(tmp_path / "whole", words)
    run(tmp_path / "parts", [*words, "trainer.max_steps=4"])
    run(tmp_path / "parts", words)
    found = differences(result(tmp_path / "parts"), result(tmp_path / "whole"))
    assert [name for name in found if not name.endswith("max_steps")] == []  # the schedule keeps its first end


@pytest.mark.parametrize(
    ("before", "after"),
    [(TWO, []), ([], TWO), (SHARDED, []), ([], SHARDED)],
    ids=["two, then one", "one, then two", "two with parts, then one", "one, then two with parts"],
)
def test_a_run_resumes_with_another_number_of_processes(
    before: list[str], after: list[str], corpus: DummyCorpus, tmp_path: Path
) -> None:
    words = command(corpus, "trainer.val_check_interval=2", "trainer.max_steps=2")
    first = run(tmp_path, [*words, *before])
    for path in tmp_path.glob("rank*.json"):
        path.unlink()
    ranks = run(tmp_path, [*words, *after, "trainer.max_steps=-1", "trainer.max_epochs=2"])
    assert len(ranks) == (2 if after else 1)
    assert "with the rest of its epoch, but with other random numbers" in (tmp_path / "log.txt").read_text()
    both = [index for record in (*first, *ranks) for index in seen(record, 0)]
    assert len(set(range(11)) - {*both}) <= 1  # from an incomplete batch
    assert len(both) - len({*both}) <= 1  # so that both processes have equally many
    assert {index for record in ranks for index in seen(record, 1)} >= {*range(10)} or len(ranks) == 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_process_dies_the_other_ends(victim: int, corpus: DummyCorpus, tmp_path: Path) -> None:
    process = start(tmp_path, command(corpus, *TWO, "trainer.max_steps=100000", "trainer.val_check_interval=100000"))
    while process.poll() is None and len(records(tmp_path)) < 2:
        time.sleep(0.1)
    assert process.poll() is None, (tmp_path / "log.txt").read_text()
    (child,) = children(process.pid)
    pids = [process.pid, child]
    os.kill(pids[victim], signal.SIGKILL)
    wait_until(lambda: process.poll() is not None and not is_alive(pids[1 - victim]), "for the other process")
    log = (tmp_path / "log.txt").read_text()
    process.wait(timeout=PATIENCE)
    if victim == 1:
        assert process.returncode == 2, log
        assert "error: process 1 of this run has ended by signal 9" in log
    else:
        assert "process of this run has ended" in log


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_process_that_is_still_starting_does_not_wait_for_a_dead_one(corpus: DummyCorpus, tmp_path: Path) -> None:
    process = start(tmp_path, command(corpus, *TWO))
    while process.poll() is None and not children(process.pid):
        time.sleep(0.05)
    (child,) = children(process.pid)
    process.kill()
    process.wait()
    # without our check, it would wait for half an hour
    wait_until(lambda: not is_alive(child), "for the other process")
    assert "the first process of this run has ended" in (tmp_path / "log.txt").read_text()


def test_stopping_one_process_stops_both_after_the_same_step(corpus: DummyCorpus, tmp_path: Path) -> None:
    process = start(tmp_path, command(corpus, *TWO, "trainer.max_steps=100000", "trainer.val_check_interval=100000"))
    while process.poll() is None and len(records(tmp_path)) < 2:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGTERM, (tmp_path / "log.txt").read_text()
    first, second = records(tmp_path)
    assert first["step"] == second["step"]
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert load_lightning_checkpoint(checkpoint)["global_step"] == first["step"]


def free_port() -> int:
    """Return a free port, because another run of these tests on this machine may use a fixed one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_torchrun_starts_the_processes_too(corpus: DummyCorpus, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    first, second = run(tmp_path, [*launcher, *command(corpus, *TWO, "trainer.max_steps=2")])
    assert first["step"] == second["step"] == 2
    assert not {*seen(first, 0)} & {*seen(second, 0)}


def test_slurm_starts_the_processes_too_and_they_agree_on_one_folder(corpus: DummyCorpus, tmp_path: Path) -> None:
    words = command(corpus, *TWO, "trainer.max_steps=2", "exp_manager.resume_if_exists=false")
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "nest",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_NODEID": "0",
        "MASTER_PORT": str(free_port()),
    }
    tasks = []
    for rank in ("1", "0"):
        tasks.append(start(tmp_path, words, **job, SLURM_PROCID=rank, SLURM_LOCALID=rank))
        time.sleep(1.5)  # names of folders contain the second of the start
    for task in tasks:
        assert task.wait(timeout=PATIENCE) == 0, (tmp_path / "log.txt").read_text()
    first, second = records(tmp_path)
    assert not {*seen(first, 0)} & {*seen(second, 0)}
    (name,) = (tmp_path / "nest_experiments").iterdir()
    (folder,) = name.iterdir()
    assert list(folder.rglob("*last.ckpt"))


def test_a_sharded_model_is_archived_with_its_best_weights(corpus: DummyCorpus, tmp_path: Path) -> None:
    best = "+exp_manager.checkpoint_callback_params.save_best_model=true"
    run(tmp_path, command(corpus, *SHARDED, best, "trainer.max_steps=4", "trainer.val_check_interval=2"))
    (archive,) = tmp_path.rglob("*.nemo")
    (checkpoint,) = (path for path in tmp_path.rglob("*.ckpt") if not path.stem.endswith("-last"))
    weights = load_lightning_checkpoint(checkpoint)["state_dict"]
    archived = load_nemo(archive).state_dict
    assert archived.keys() == weights.keys()
    assert all(torch.equal(archived[name], value) for name, value in weights.items())


def compare_in_two_processes(rank: int, folder: str, same: bool) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    weights = [("quantizer.projection", torch.ones(3)), ("quantizer.codebooks", torch.full((3,), float(same or rank)))]
    try:
        refuse_different_weights(weights)
        said = "same"
    except NestError as error:
        said = str(error)
    (Path(folder) / f"{rank}.txt").write_text(said)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("same", [True, False])
def test_processes_with_different_quantizers_do_not_start(same: bool, tmp_path: Path) -> None:
    spawn(compare_in_two_processes, args=(str(tmp_path), same), nprocs=2)
    for rank in (0, 1):
        said = (tmp_path / f"{rank}.txt").read_text()
        assert said == "same" if same else "quantizer.codebooks: process 1 starts with other values" in said
