"""Atomic writes: a file keeps its old content until the new content is safely on the disk."""

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
_ABANDONED_AFTER = 24 * 3600  # seconds without a change: longer than any write takes
_writing: set[str] = set()  # names of this process's temporary files


@contextlib.contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; it replaces `path` if the block succeeds.

    Temporary files of killed processes are removed, those of living ones are not. If two processes write the same path,
    the later one wins, and the file is complete in any case.
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
    """Remove the temporary files that killed processes left for files with such names (`*.ckpt`)."""
    for leftover in folder.glob(f".{names}.*.tmp"):
        with contextlib.suppress(OSError):  # another process removed it; on Windows, it may be open
            if not _may_be_in_use(leftover):
                leftover.unlink()


def _give_usual_mode(temporary: Path) -> None:
    """Give a file that a library created for its owner alone (mode 600) the mode of the umask."""
    if os.name != "posix" or stat.S_IMODE(temporary.stat().st_mode) != 0o600:
        return
    probe = temporary.with_suffix(".mode.tmp")
    try:
        probe.touch()  # reading the umask would change it for every thread
        temporary.chmod(stat.S_IMODE(probe.stat().st_mode))
    finally:
        probe.unlink(missing_ok=True)


def _machine() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _may_be_in_use(temporary: Path) -> bool:
    """Return whether the process of a temporary file may be alive; for other machines, its last change decides."""
    machine, _, process = temporary.name.split(".")[-2].partition("-")
    pid = process.partition("-")[0]
    if machine == _machine() and pid.isdecimal():
        if int(pid) == os.getpid():  # ours, or of an earlier process: containers reuse numbers
            return temporary.name in _writing
        if not process_lives(int(pid)):
            return False
    return time.time() - temporary.stat().st_mtime < _ABANDONED_AFTER


def open_streaming(path: Path | str) -> io.BufferedWriter:
    """Open a new file for much data: it goes to the disk while it is written, so that the last flush is short."""
    return io.BufferedWriter(_Streaming(path, "wb"))


class _Streaming(io.FileIO):
    """Asks the system every 64 MB to start writing to the disk."""

    _asked_at = _written = 0

    def write(self, content: Any) -> int:
        written = super().write(content)
        self._written += written
        if self._written - self._asked_at >= _FLUSH_EVERY and hasattr(os, "posix_fadvise"):
            self._asked_at = self._written
            with contextlib.suppress(OSError):  # not supported by this file system
                os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # Linux writes dirty pages, then drops
        return written


def _flush_to_disk(path: Path, flags: int = os.O_RDWR) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
