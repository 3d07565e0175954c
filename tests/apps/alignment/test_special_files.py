"""A pipe where a recording should be is refused at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.errors import NestError
try:
    Recording(Path(sys.argv[1]))
except NestError as error:
    print(error)
except OSError as error:
    print(f"{error.filename}: {error.strerror}")
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_no_recording(tmp_path: Path) -> None:
    """In a process of its own: who opens a pipe waits for ever."""
    os.mkfifo(tmp_path / "metadata.pkl")
    run = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{tmp_path / 'metadata.pkl'}: is not a regular file (a named pipe)\n"
