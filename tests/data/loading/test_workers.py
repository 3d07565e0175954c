"""Worker processes end with their run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nest_ssl.data.loading.workers import follow_the_main_process
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
# The main process, which ends before its worker is ready
MAIN = """
import multiprocessing, os, sys
from tests.data.loading.test_workers import late_worker
if __name__ == "__main__":
    multiprocessing.get_context(sys.argv[2]).Process(target=late_worker, args=(sys.argv[1],)).start()
    sys.stdin.read()
"""


def late_worker(folder: str) -> None:
    main = multiprocessing.parent_process()
    assert main is not None
    (Path(folder) / "begun").touch()
    main.join()
    follow_the_main_process(0)
    (Path(folder) / "outlived").touch()
    time.sleep(5)


@pytest.mark.skipif(os.name != "posix", reason="torch asks Windows for the main process itself")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_whose_run_was_killed_while_it_started_ends(method: str, tmp_path: Path) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    (tmp_path / "main.py").write_text(MAIN, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "main.py"), str(tmp_path), method]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as main:
        wait_until((tmp_path / "begun").exists, "for the worker")
        main.send_signal(signal.SIGKILL)
        assert main.stdout is not None
        main.stdout.read()  # until the worker, which shares the pipe, has also ended
    assert not (tmp_path / "outlived").exists()
