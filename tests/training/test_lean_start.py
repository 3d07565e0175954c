from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="scipy is not installed")
def test_training_starts_without_scipy_and_leaves_it_usable() -> None:
    start = "import sys, nest_ssl.training.run; print('scipy.signal' in sys.modules or 'scipy.stats' in sys.modules);"
    use = "import scipy.signal, torchmetrics; print(len(scipy.signal.windows.hamming(3)))"
    assert output_of(start + use).split() == ["False", "3"]


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="scipy is not installed")
def test_a_scipy_that_is_loaded_already_stays() -> None:
    code = "import scipy.signal as s, sys, nest_ssl.training.lean_start; print(sys.modules['scipy.signal'] is s)"
    assert output_of(code) == "True"


def test_starting_loads_nothing_that_only_some_runs_use() -> None:
    code = "import sys, nest_ssl.training.run; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in output_of(code).split()}
    assert not loaded & {"tensorboard", "wandb", "matplotlib", "pandas", "sklearn", "numba", "IPython"}


def test_a_picture_can_be_drawn_after_the_start() -> None:
    code = "import nest_ssl.training.lean_start, torchmetrics, matplotlib.figure as f; print(f.Figure().axes)"
    assert output_of(code) == "[]"


def test_garbage_is_collected_after_the_start_as_before_it() -> None:
    code = "import gc, sys; {}; import nest_ssl.training.lean_start; print(gc.isenabled())"
    assert output_of(code.format("gc.enable()")) == "True"
    assert output_of(code.format("gc.disable()")) == "False"
