"""Files that are either whole or not there: the old content survives until the new is safe on the disk."""

from __future__ import annotations

import contextlib
import glob
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; it takes the place of `path` if the block succeeds.

    One process writes a given path. What a killed earlier attempt left behind is removed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):  # Windows keeps a file that is still open
            leftover.unlink()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)  # noqa: PTH105 (pathlib's replace is the same call; the name says it is atomic)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        _flush_to_disk(path.parent, os.O_RDONLY)  # the new name itself; Windows cannot open a folder


def _flush_to_disk(path: Path, flags: int = os.O_RDWR) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
