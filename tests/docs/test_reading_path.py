"""The reading path of docs/architecture.md lists the files that a training run uses now, and a run loads few others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Loaded by a run that writes checkpoints of one format: the readers of all formats, and what declares keys and values
NOT_CALLED = {
    *(f"checkpoint/{name}.py" for name in ("inspection", "lightning", "nemo", "safetensors", "weights")),
    *(f"config/schema/{name}.py" for name in ("experiment", "run")),
}


@pytest.mark.slow
def test_the_reading_path_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "list_reading_path.py"), "--check"]
    finished = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert finished.returncode == 0, finished.stderr


def test_a_run_loads_only_files_that_it_uses() -> None:
    code = (
        "import sys, nest_ssl.training.run; "
        "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('nest_ssl')), sep='\\n')"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {Path(name).relative_to(ROOT / "nest_ssl").as_posix() for name in finished.stdout.splitlines()}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    used = set(re.findall(r"^\| \d+ \| `nest_ssl/([^`]+)` \|", page, re.M))
    assert {name for name in loaded - used if not name.endswith("__init__.py")} == NOT_CALLED
