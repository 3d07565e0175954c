"""A pipe, a device or a folder where a model file should be is refused when its fingerprint is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from pathlib import Path
from nest_ssl.apps.features.store import file_fingerprint
from nest_ssl.errors import NestError
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        file_fingerprint(path)
        line = "was read"
    except NestError as error:
        line = str(error)
    except OSError as error:
        line = f"{error.filename}: {error.strerror}"
    print(json.dumps([str(path), line]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo") or not Path("/dev/zero").exists(), reason="no such files here")
def test_what_is_no_regular_file_has_no_fingerprint(tmp_path: Path) -> None:
    """In a process of its own: who opens a pipe waits for ever."""
    for suffix in ("nemo", "ckpt", "safetensors"):
        os.mkfifo(tmp_path / f"pipe.{suffix}")
        (tmp_path / f"device.{suffix}").symlink_to("/dev/zero")
        (tmp_path / f"folder.{suffix}").mkdir()
    run = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) == 9
    kinds = {"pipe": "is not a regular file (a named pipe)", "device": "is not a regular file (a device)"}
    for path, line in found:
        assert line == f"{path}: {kinds.get(Path(path).stem, 'is a folder')}"
