"""Files that are either whole or not there: the old content survives until the new is safe on the disk."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import platform
import stat
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nest_ssl.folder_lock import process_lives

_FLUSH_EVERY = 64 * 2**20  # bytes
_NOBODYS_AFTER = 24 * 3600  # seconds without a change: longer than anything takes to write
_writing: set[str] = set()  # names of this process's temporary files


@contextlib.contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; it takes the place of `path` if the block succeeds.

    What a killed earlier attempt left behind is removed; not what a living process writes. Of two that write the same
    path, the later one has the last word, and either file is whole.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, glob.escape(path.name))
    temporary = path.with_name(f".{path.name}.{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    _writing.add(temporary.name)
    try:
        yield temporary
        _give_usual_mode(temporary)
        _flush_to_disk(temporary)
        os.replace(temporary, path)  # noqa: PTH105 (pathlib's replace is the same call; the name says it is atomic)
    finally:
        temporary.unlink(missing_ok=True)
        _writing.discard(temporary.name)
    if os.name == "posix":
        _flush_to_disk(path.parent, os.O_RDONLY)  # the new name itself; Windows cannot open a folder


def remove_leftovers(folder: Path, names: str) -> None:
    """Remove what killed processes have left of files with such names (`*.ckpt`); not what a living one is writing."""
    for leftover in folder.glob(f".{names}.*.tmp"):
        with contextlib.suppress(OSError):  # somebody else was faster; Windows keeps a file that is still open
            if not _may_be_in_use(leftover):
                leftover.unlink()


def _give_usual_mode(temporary: Path) -> None:
    """Give a file that a library made for its owner alone, as tempfile does, the mode that the umask gives."""
    if os.name != "posix" or stat.S_IMODE(temporary.stat().st_mode) != 0o600:
        return
    probe = temporary.with_suffix(".mode.tmp")
    try:
        probe.touch()  # the umask itself can be read only by changing it, for every thread
        temporary.chmod(stat.S_IMODE(probe.stat().st_mode))
    finally:
        probe.unlink(missing_ok=True)


def _machine() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _may_be_in_use(temporary: Path) -> bool:
    """Whether its process lives; of another machine's nothing is known but when the file changed last."""
    machine, _, process = temporary.name.split(".")[-2].partition("-")
    pid = process.partition("-")[0]
    if machine == _machine() and pid.isdecimal():
        if int(pid) == os.getpid():  # ours, or an earlier process's: containers begin to count anew
            return temporary.name in _writing
        if not process_lives(int(pid)):
            return False
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
