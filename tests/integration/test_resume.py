"""A run that is killed at any moment and restarted by the same command ends with the same bits as without the kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lhotse import CutSet, Recording

from nest_ssl.apps.datatools.tar_writer import TarOptions, make_tarred_sets
from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from tests.differences import differences
from tests.integration.conftest import SMALL
from tests.waiting import PATIENCE, random_draws, wait_until

ROOT = Path(__file__).parents[2]
# a validation, and therefore a checkpoint, between two updates
ACCUMULATING = ["trainer.accumulate_grad_batches=2", "trainer.max_steps=20"]
WORKERS = ["model.train_ds.num_workers=2", "model.validation_ds.num_workers=1"]
NO_WORKERS = ["model.train_ds.num_workers=0", "model.validation_ds.num_workers=0"]
TARRED = [  # five shards of three utterances
    *("model.train_ds.is_tarred=true", "model.train_ds.manifest_filepath={tarred}/tarred_audio_manifest.json"),
    *("model.train_ds.tarred_audio_filepaths={tarred}/audio__OP_0..4_CL_.tar", "model.train_ds.shuffle_n=4"),
]
LHOTSE = [
    *("model.train_ds.use_lhotse=true", "model.train_ds.manifest_filepath={manifest}", "model.train_ds.seed=5"),
    *("model.train_ds.batch_size=null", "model.train_ds.batch_duration=12", "model.train_ds.shard_seed=randomized"),
    *("model.train_ds.use_bucketing=true", "model.train_ds.num_buckets=3", "model.train_ds.bucket_buffer_size=9"),
]
SHAR = [*LHOTSE, "model.train_ds.manifest_filepath=null", "model.train_ds.shar_path={shar}"]
TWO_PROCESSES = ["trainer.accelerator=cpu", "trainer.devices=2", "trainer.strategy=ddp"]
SETTINGS = ["seed=1", "trainer.max_steps=40", "trainer.val_check_interval=3", "model.train_ds.batch_size=2"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=17, val=2, noise=2)


@pytest.fixture(scope="module")
def places(corpus: DummyCorpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The utterances of the corpus in every format that can be read."""
    tarred, shar = tmp_path_factory.mktemp("tarred"), tmp_path_factory.mktemp("shar")
    make_tarred_sets(corpus.train_manifest, tarred, TarOptions(num_shards=5))
    rows = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    recordings = [Recording.from_file(corpus.train_manifest.parent / row["audio_filepath"]) for row in rows]
    CutSet.from_cuts([one.to_cut() for one in recordings]).to_shar(shar, fields={"recording": "wav"}, shard_size=3)
    return {"manifest": corpus.train_manifest, "tarred": tarred, "shar": shar}


def start(folder: Path, corpus: DummyCorpus, overrides: list[str]) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    manifests = [
        f"model.train_ds.manifest_filepath=[{corpus.train_manifest},{corpus.val_manifest}]",
        f"model.train_ds.noise_manifest={corpus.noise_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        f"model.validation_ds.noise_manifest={corpus.noise_manifest}",
    ]
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, *SETTINGS, *manifests, *overrides]
    with (folder / "log.txt").open("ab") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    assert process.wait(timeout=PATIENCE) == 0, (folder / "log.txt").read_text()


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")  # not on macOS
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def descendants(pid: int) -> list[int]:
    """Return the other ranks, and the workers of all ranks."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


def is_rank(pid: int) -> bool:
    """Return whether a child process of a run is a rank and not a worker: only ranks have the variable."""
    try:
        return b"\0LOCAL_RANK=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has just ended
        return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_the_end_of(processes: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, processes)), "for processes that outlive their run")


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


KILLED = {
    "exact, no workers": NO_WORKERS,
    "fast, two workers": [*WORKERS, "model.numerics=fast"],
    "accumulating, several sets, in the background": [
        *(*ACCUMULATING, "model.train_ds.num_workers=0", "model.train_ds.is_concat=true"),
        "exp_manager.checkpoint_callback_params.async_save=true",
    ],
    "tar files, two workers": [*TARRED, *WORKERS],
    "tar files, no workers, accumulating": [*TARRED, *NO_WORKERS, *ACCUMULATING],
    "lhotse, two workers": [*LHOTSE, *WORKERS],
    "Shar, two workers, accumulating": [*SHAR, *WORKERS, *ACCUMULATING],
    "two processes": [*TWO_PROCESSES, "model.train_ds.num_workers=1", *ACCUMULATING],
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 on Windows")
@pytest.mark.parametrize("case", KILLED)
def test_a_run_killed_at_random_ends_with_the_same_bits(
    case: str, corpus: DummyCorpus, places: dict[str, Path], tmp_path: Path
) -> None:
    overrides = [word.format_map(places) for word in KILLED[case]]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(whole, corpus, overrides), whole)
    draw = random_draws()
    kills, longest_wait = 0, 1.0
    while True:
        process = start(killed, corpus, overrides)
        before = written_at(killed)
        while process.poll() is None and written_at(killed) == before:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, longest_wait))
        if kills == 2 or process.poll() is not None:
            finish(process, killed)
            if kills:
                break
            shutil.rmtree(killed)  # the run ended before it could be killed
            longest_wait /= 4
            continue
        everyone = descendants(process.pid)
        ranks = [process.pid, *(pid for pid in children(process.pid) if is_rank(pid))]
        for pid in draw.sample(ranks, draw.randint(1, len(ranks))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE)
        kills += 1
        wait_for_the_end_of(everyone)
    assert result(whole)["global_step"] in (20, 40)
    assert differences(result(killed), result(whole)) == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows has no signals to a group of processes")
@pytest.mark.parametrize(
    ("number", "more"),
    [
        (signal.SIGTERM, ["trainer.accumulate_grad_batches=2"]),
        (signal.SIGINT, ["trainer.accumulate_grad_batches=2"]),
        (signal.SIGTERM, ["trainer.limit_train_batches=1", "model.numerics=fast", "trainer.max_steps=150"]),
    ],
    ids=["SIGTERM", "Ctrl-C", "epochs of one batch"],
)
def test_a_run_stopped_by_a_signal_saves_and_resumes_bit_for_bit(
    number: signal.Signals, more: list[str], corpus: DummyCorpus, tmp_path: Path
) -> None:
    overrides = ["model.train_ds.num_workers=2", "trainer.val_check_interval=1000", "trainer.max_steps=30", *more]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    finish(start(whole, corpus, overrides), whole)
    draw = random_draws()
    stops, longest_wait = 0, 1.5
    while True:
        process = start(stopped, corpus, overrides)
        log = stopped / "log.txt"
        running = log.stat().st_size
        while process.poll() is None and b"train_loss" not in log.read_bytes()[running:]:
            time.sleep(0.05)
        time.sleep(draw.uniform(0, longest_wait))
        if stops == 2 or process.poll() is not None:
            finish(process, stopped)
            if stops:
                break
            shutil.rmtree(stopped)  # the run ended before it could be stopped
            longest_wait /= 4
            continue
        os.killpg(process.pid, number)  # workers get the signal, too, as from a terminal
        code = process.wait(timeout=PATIENCE)
        said = log.read_bytes()[running:]
        if b"NeMo archive" in said and b"stopped by" not in said:  # the run ended before the signal
            if stops:
                break
            shutil.rmtree(stopped)
            longest_wait /= 4
            continue
        assert code == 128 + number, log.read_text()
        assert newest_checkpoint(stopped) is not None, log.read_text()
        stops += 1
    assert differences(result(stopped), result(whole)) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with space for one checkpoint, an archive of the small model, and half of another checkpoint."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root on Linux only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_destroys_no_existing_checkpoint(corpus: DummyCorpus, tmp_path: Path, small_disk: Path) -> None:
    overrides = [f"exp_manager.exp_dir={small_disk}", "exp_manager.log_samples=false", "trainer.max_steps=12"]
    process = start(tmp_path / "run", corpus, overrides)
    assert process.wait(timeout=PATIENCE) == 2
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "No space left on device; training continues, the newest is" in log
    assert log.rstrip().endswith("error: the end of the run could not be saved: [Errno 28] No space left on device")
    assert result(small_disk)["global_step"] == 3
    assert not list(small_disk.rglob("*.tmp"))
