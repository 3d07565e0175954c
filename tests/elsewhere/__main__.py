"""`python -m tests.elsewhere [pytest's arguments]`: run all or some tests on an imitation of other systems."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The tests work in this folder, whose name has what paths of users have, such as spaces and a drive letter
ODD_FOLDER = "Eigene Dateien (1) 语音 & noise" if os.name == "nt" else r"C:\Eigene Dateien (1) 语音 & noise"


def command(folder: Path) -> list[str]:
    """Return the command that runs pytest in `folder`, which is emptied; append the names of tests."""
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder}"]


def environment() -> Mapping[str, str]:
    """Return the environment of the tests: the locale is ASCII, and text files without an encoding are an error."""
    here = os.pathsep.join((str(ROOT / "tests" / "elsewhere"), str(ROOT)))
    return {**os.environ, "PYTHONPATH": here, "LC_ALL": "C", "PYTHONWARNDEFAULTENCODING": "1"}


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        pytest = [*command(Path(folder, ODD_FOLDER)), "--ignore=tests/test_elsewhere.py"]
        return subprocess.call([*pytest, *arguments], cwd=ROOT, env=environment())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
