"""Several processes return results in order, and end with a clear error if one dies or is interrupted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nest_ssl.apps.datatools import processes
from nest_ssl.apps.datatools.processes import in_processes
from nest_ssl.apps.datatools.tar_writer import TarOptions, make_tarred_sets
from nest_ssl.errors import NestError
from tests.waiting import PATIENCE, wait_until


def square(number: int) -> int:
    return number**2


def die(number: int) -> int:
    os._exit(3)


def wait_for_ctrl_c(begun: Path) -> None:
    begun.touch()
    try:
        time.sleep(2 * PATIENCE)
    except KeyboardInterrupt:
        begun.with_name("cleaned up").touch()
        raise


def where(piece: Any) -> str:
    return f"piece {piece}: a process died"


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers: int) -> None:
    found = list(in_processes(square, iter(range(30)), workers, died_at=where))
    assert found == [(number, number**2) for number in range(30)]


def test_a_process_that_dies_gives_an_error_of_one_line() -> None:
    with pytest.raises(NestError, match=r"^piece 0: a process died or soon after; try --workers 1$"):
        list(in_processes(die, range(30), 2, died_at=where))


def test_the_number_of_processes_is_limited_to_what_windows_supports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write_audio: Callable, write_manifest: Callable
) -> None:
    asked: list[int] = []

    class Pool(processes.ProcessPoolExecutor):
        def __init__(self, workers: int, **options: Any) -> None:
            asked.append(workers)
            super().__init__(1, **options)

    monkeypatch.setattr(processes, "ProcessPoolExecutor", Pool)
    manifest = write_manifest([write_audio("a.wav", np.linspace(-0.5, 0.5, 16000))])
    make_tarred_sets(Path(manifest), tmp_path / "tarred", TarOptions(num_shards=1), workers=100)
    assert asked == [60]


def interrupt(ready: Callable[[int], bool], folder: Path, start_method: str | None = None) -> int:
    """Run a command with two workers, press Ctrl-C when it is ready, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if start_method is not None:
            multiprocessing.set_start_method(start_method, force=True)
        pieces = [folder / f"begun{number}" for number in range(9)]
        try:
            list(in_processes(wait_for_ctrl_c, pieces, 2, died_at=where))
        except KeyboardInterrupt:
            os._exit(0)
        os._exit(1)
    wait_until(lambda: ready(pid), "for two workers")
    os.killpg(pid, signal.SIGINT)
    return os.waitpid(pid, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork, and no signals to a group of processes")
def test_ctrl_c_ends_the_current_work_which_can_clean_up(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    before = time.monotonic()
    assert interrupt(lambda _: len(list(tmp_path.glob("begun*"))) == 2, tmp_path) == 0
    assert time.monotonic() - before < 2 * PATIENCE  # the work would take so long without an interruption
    assert (tmp_path / "cleaned up").exists()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork, and no signals to a group of processes")
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_ctrl_c_while_processes_start_prints_no_traceback(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    def workers_import(pid: int) -> bool:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        workers = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return sum(map(is_python, workers)) == 2

    def is_python(pid: str) -> bool:
        """Return whether the interpreter has started and turns Ctrl-C into an exception."""
        caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)

    assert interrupt(workers_import, tmp_path, "spawn") == 0
    assert "Traceback" not in capfd.readouterr().err
