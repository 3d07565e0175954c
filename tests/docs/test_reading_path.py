"""The reading path of docs/architecture.md lists the files that a training run uses now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_reading_path_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "list_reading_path.py"), "--check"]
    finished = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert finished.returncode == 0, finished.stderr
