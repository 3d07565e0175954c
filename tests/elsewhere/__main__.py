"""`python -m tests.elsewhere [what pytest takes]`: the whole suite, or what is named, as other systems would run it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Tests work below it: what is in the paths of others, spaces and a drive letter among it
ODD_FOLDER = "Eigene Dateien (1) 语音 & noise" if os.name == "nt" else r"C:\Eigene Dateien (1) 语音 & noise"


def command(folder: Path) -> list[str]:
    """Runs pytest in `folder`, which is emptied; what to run is appended."""
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder}"]


def environment() -> Mapping[str, str]:
    """Of the processes: nothing but ASCII is taken for granted, and an encoding that is not named is a mistake."""
    here = os.pathsep.join((str(ROOT / "tests" / "elsewhere"), str(ROOT)))
    return {**os.environ, "PYTHONPATH": here, "LC_ALL": "C", "PYTHONWARNDEFAULTENCODING": "1"}


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        pytest = [*command(Path(folder, ODD_FOLDER)), "--ignore=tests/test_elsewhere.py"]
        return subprocess.call([*pytest, *arguments], cwd=ROOT, env=environment())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
