"""The suite as other systems would run it: spawned processes, no fork, few signals, odd paths, no language set.

`PYTHONPATH=tests/elsewhere pytest ...` does it for any test; here for those that start processes and read files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STARTING_PROCESSES = [
    "tests/data/test_loader.py",
    "tests/data/test_check.py",
    "tests/data/test_tar_writer.py",
    "tests/integration/test_train_command.py::test_an_unreadable_file_is_one_line_also_from_a_loader_process",
    "tests/integration/test_train_command.py::test_the_same_command_continues_a_run",
]


@pytest.mark.slow
def test_processes_are_spawned_below_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    folder = tmp_path / "Eigene Dateien (1) 语音 & noise"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "elsewhere"), "LC_ALL": "C"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder}", *STARTING_PROCESSES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_process_under_the_test_can_neither_fork_nor_signal_a_group() -> None:
    code = "import multiprocessing as m, os; print(m.get_start_method(), hasattr(os, 'fork'), hasattr(os, 'killpg'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "elsewhere")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["spawn", "False", "False"]
