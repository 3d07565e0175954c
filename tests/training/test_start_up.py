from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_starting_loads_no_library_that_only_some_runs_use() -> None:
    code = "import sys, nest_ssl.training.run; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in output_of(code).split()}
    assert not loaded & {"tensorboard", "wandb", "pandas", "sklearn", "numba", "IPython"}


def test_starting_does_not_switch_garbage_collection_on_or_off() -> None:
    code = "import gc, sys; {}; import nest_ssl.training; print(gc.isenabled())"
    assert output_of(code.format("gc.enable()")) == "True"
    assert output_of(code.format("gc.disable()")) == "False"
