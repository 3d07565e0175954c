"""The interpreter that has NeMo: the one that is given, this one, or one that is made once and kept."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from nest_ssl.errors import NestError


def nemo_interpreter(given: str | None = None) -> str:
    """The first that there is."""
    for origin, python in (("--nemo-python", given), ("NEST_NEMO_PYTHON", os.environ.get("NEST_NEMO_PYTHON"))):
        if python:
            if not Path(python).is_file():
                raise NestError(f"{origin}: {python!r} does not exist; expected a Python interpreter that has NeMo")
            return python
    raise NestError("no NeMo")


def installed_nemo() -> str | None:
    """An interpreter with NeMo that is there already: this one, or the one that NEST_NEMO_PYTHON names."""
    return sys.executable if importlib.util.find_spec("nemo") else os.environ.get("NEST_NEMO_PYTHON")
