"""The programs let OpenMP's waiting threads sleep soon, early enough for the runtime to notice, unless users chose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nest_ssl.threads import CHOICES, SHORT_WAIT, sleep_soon
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "train.py": ["train.py", "model.train_ds.manifest_filepath=none.json", "model.validation_ds=null"],
    "train_with_saver.py": ["train_with_saver.py", "model.train_ds.manifest_filepath=none.json"],
    "nest-ssl": ["-m", "nest_ssl", "train", "model.train_ds.manifest_filepath=none.json"],
}


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in CHOICES:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    return monkeypatch


def test_it_is_set_where_nobody_chose(unset: pytest.MonkeyPatch) -> None:
    sleep_soon()
    assert {name: os.environ.get(name) for name in CHOICES} == {**dict.fromkeys(CHOICES), **SHORT_WAIT}


@pytest.mark.parametrize("name", CHOICES)
def test_what_users_set_is_left_alone(name: str, unset: pytest.MonkeyPatch) -> None:
    unset.setenv(name, "7")
    sleep_soon()
    assert {other: os.environ[other] for other in CHOICES if other in os.environ} == {name: "7"}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_runtime_has_read_it_when_a_program_computes(command: list[str], unset: pytest.MonkeyPatch) -> None:
    """OpenMP itself prints its settings when it is loaded, before the program finds that its input is missing."""
    unset.setenv("OMP_DISPLAY_ENV", "VERBOSE")  # GCC's
    unset.setenv("KMP_SETTINGS", "1")  # LLVM's and Intel's
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    gcc, llvm = SHORT_WAIT["GOMP_SPINCOUNT"], SHORT_WAIT["KMP_BLOCKTIME"]
    assert f"GOMP_SPINCOUNT = '{gcc}'" in done.stderr or f"KMP_BLOCKTIME={llvm}" in done.stderr.replace(" ", "")
