"""NeMo's recording script finds the project around it, also where NeMo itself is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]


def test_the_tool_finds_the_script_that_records_nemo(tmp_path: Path) -> None:
    tool = str(ROOT / "tools" / "masked_token_pred_pretrain_with_saver.py")
    done = subprocess.run(
        [sys.executable, tool, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "Pre-train NEST with NeMo and record what it does." in done.stdout
