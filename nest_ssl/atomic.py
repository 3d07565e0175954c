"""Files that are either whole or not there: the old content survives until the new is safe on the disk."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import platform
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FLUSH_EVERY = 64 * 2**20  # bytes
_NOBODYS_AFTER = 24 * 3600  # seconds without a change: longer than anything takes to write


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
    temporary = path.with_name(f".{path.name}.{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)  # noqa: PTH105 (pathlib's replace is the same call; the name says it is atomic)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        _flush_to_disk(path.parent, os.O_RDONLY)  # the new name itself; Windows cannot open a folder


def remove_leftovers(folder: Path, names: str) -> None:
    """Remove what killed processes have left of files with such names (`*.ckpt`); not what a living one may be writing.

    Call it before this process writes anything there.
    """
    for leftover in folder.glob(f".{names}.*.tmp"):
        with contextlib.suppress(OSError):  # somebody else was faster; Windows keeps a file that is still open
            if os.name != "posix" or not _may_be_in_use(leftover):
                leftover.unlink()


def _machine() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _may_be_in_use(temporary: Path) -> bool:
    """Whether its process lives; of another machine's nothing is known but when the file changed last."""
    machine, _, process = temporary.name.split(".")[-2].partition("-")
    pid = process.partition("-")[0]
    if machine == _machine() and pid.isdecimal():
        if int(pid) == os.getpid():  # an earlier process with our number: containers begin to count anew
            return False
        try:
            os.kill(int(pid), 0)  # only asks
        except ProcessLookupError:
            return False
        except OSError:  # it lives, and is somebody else's
            pass
    return time.time() - temporary.stat().st_mtime < _NOBODYS_AFTER


def open_streaming(path: Path | str) -> io.BufferedWriter:
    """A new file to write much to: the disk works while more is being written, so that the last flush is short."""
    return io.BufferedWriter(_Streaming(path, "wb"))


class _Streaming(io.FileIO):
    """Asks the system, every now and then, to begin with what it would otherwise keep until the flush."""

    _asked_at = _written = 0

    def write(self, content: Any) -> int:
        written = super().write(content)
        self._written += written
        if self._written - self._asked_at >= _FLUSH_EVERY and hasattr(os, "posix_fadvise"):
            self._asked_at = self._written
            with contextlib.suppress(OSError):  # a file system that takes no advice
                os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # Linux writes dirty pages, then drops
        return written


def _flush_to_disk(path: Path, flags: int = os.O_RDWR) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
