#!/usr/bin/env python3
"""Check style, types and the files that follow a published schema: `python start.py lint`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "style": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "workflow": [
        *("check_jsonschema", "--builtin-schema", "vendor.github-workflows"),
        ".github/workflows/tests.yml",
    ],
    "citation": ["check_jsonschema", "--builtin-schema", "vendor.citation-file-format", "CITATION.cff"],
}


def check(name: str) -> subprocess.CompletedProcess[str]:
    """Run one of the checks; if the exit code is not 0, its output says what is wrong."""
    # isolated (-I), so that a changed search path or start-up file cannot change the answer
    tool = [sys.executable, "-I", "-m", *COMMANDS[name]]
    return subprocess.run(tool, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> int:
    """Run every check and print what failed; return 1 if anything did."""
    failed = False
    for name in COMMANDS:
        finished = check(name)
        print(f"{name}: {'ok' if finished.returncode == 0 else 'failed'}", flush=True)
        if finished.returncode != 0:
            failed = True
            print(finished.stdout)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
