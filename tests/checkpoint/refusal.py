"""Check that a file that cannot be used is refused, in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nest_ssl.errors import CheckpointError


def refused(load: Callable[[Path], Any], path: Path, message: str | None = None) -> str:
    """Check that the error is one line that names the file, and that no new file appears."""
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(CheckpointError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 350
    assert sorted(path.parent.rglob("*")) == before
    return str(caught.value)
