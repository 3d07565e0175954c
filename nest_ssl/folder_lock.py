"""A lock that lets one process at a time write into a folder; it ends with its process, and names its holder.

The operating system locks a small file, and releases the lock when the process ends in any way. Some shared file
systems lock for one machine only, or not at all: there the holder's heartbeat decides, a counter in the file that the
holder increases every few seconds. The library `filelock` has no heartbeat and does not know the holder; and start.py
needs the lock before any library is installed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from nest_ssl.errors import NestError, one_line

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:
    msvcrt = None  # type: ignore[assignment]

LOCK = ".nest_ssl.lock"  # in the folder, as long as it is held
_BEAT = 4.0  # seconds between two heartbeats
_SILENCE = 3 * _BEAT  # seconds without a heartbeat after which the holder counts as ended
_FAR_AWAY = 2**30  # position of the byte that Windows locks: others cannot read locked bytes
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
_held: set[int] = set()  # descriptors; a forked child closes them, or it would keep the lock


class FolderInUse(NestError):
    """Another process holds the folder; the message says which one."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    host: str
    process: int
    since: str
    command: str
    beat: int = 0

    @classmethod
    def this_process(cls) -> Holder:
        command = " ".join(sys.argv)[:500]
        return cls(platform.node(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S %z"), command)

    def __str__(self) -> str:
        return one_line(f"process {self.process} on {self.host} since {self.since} ({self.command})", 400)


@contextlib.contextmanager
def lock_folder(folder: Path, advice: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a folder, creating it if needed; if another process holds it, raise `FolderInUse` with `advice`.

    With `waiting`, call it once with the holder's name, and wait.
    """
    with lock_file(folder / LOCK, advice, waiting):
        yield


@contextlib.contextmanager
def lock_file(path: Path, advice: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Do the same with a lock file of another name; after the block, remove it and the empty folders created for it."""
    made = _make_folders(path.parent)
    try:
        descriptor = _wait_for(path, advice, waiting)
        _held.add(descriptor)
        ended = threading.Event()
        heart = threading.Thread(target=_beat, args=(descriptor, ended), name="folder lock", daemon=True)
        heart.start()
        try:
            yield
        finally:
            ended.set()
            heart.join()
            _release(path, descriptor)
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # something is in it
                folder.rmdir()


def process_lives(number: int) -> bool:
    """Return whether this machine has a process with this number."""
    if os.name == "posix":
        try:
            os.kill(number, 0)  # signal 0 only asks; on Windows it would end the process
        except ProcessLookupError:
            return False
        except OSError:  # it exists, under another user
            pass
        return True
    import ctypes

    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(kernel.OpenProcess(0x1000, False, number))  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return kernel.GetLastError() == 5  # access denied: it exists, under another user
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == 259  # STILL_ACTIVE


def _make_folders(folder: Path) -> list[Path]:
    """Create a folder and return the folders that were missing, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    _make_folder(folder)
    return missing


def _make_folder(folder: Path) -> None:
    """Create a folder while other processes may create and remove it."""
    while True:
        try:
            return folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError):  # it, or a folder above, was removed meanwhile
            if any(path.is_file() or (path.is_symlink() and not path.exists()) for path in (folder, *folder.parents)):
                raise  # a file is in the way


def _wait_for(path: Path, advice: str, waiting: Callable[[str], None] | None) -> int:
    told = False
    while True:
        taken = _take(path)
        if isinstance(taken, int):
            return taken
        who = "another process" if taken is None else str(taken)
        if waiting is None:
            raise FolderInUse(f"{path.parent}: is in use by {who}; {advice}")
        if not told:
            waiting(who)
            told = True
        time.sleep(0.2)


def _take(path: Path) -> int | Holder | None:
    """Return the descriptor of the locked file, or its holder, None if that cannot be read."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except FileNotFoundError:  # another process removed the folder
            _make_folder(path.parent)
            continue
        try:
            state = _lock(descriptor)
            holder = _read(descriptor)
            if state == "busy":
                return holder
            if not _is_same_file(descriptor, path):  # its holder removed it meanwhile
                continue
            elsewhere = holder is not None and (state == "unknown" or holder.host != platform.node())
            if elsewhere and holder is not None and _lives(path, holder):
                return holder
            _write(descriptor, Holder.this_process())
            taken, descriptor = descriptor, -1
            return taken
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _lock(descriptor: int) -> Literal["taken", "busy", "unknown"]:
    """Take the system's lock; the result is unknown if the file system has no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(descriptor, _FAR_AWAY, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            return "unknown"
    except OSError as error:
        return "busy" if error.errno in _BUSY else "unknown"
    return "taken"


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lives(path: Path, holder: Holder) -> bool:
    """Return whether the holder is alive: by its heartbeat, or at once if its process was on this machine."""
    if holder.host == platform.node():
        if holder.process == os.getpid():  # or an earlier process had this number
            return any(_is_same_file(descriptor, path) for descriptor in _held)
        if not process_lives(holder.process):
            return False
    end = time.monotonic() + _SILENCE
    while time.monotonic() < end:
        time.sleep(0.2)
        try:
            now = _parse(path.read_bytes())  # opened each time: otherwise NFS does not read new content
        except FileNotFoundError:  # it released the lock
            return False
        if now is not None and now != holder:
            return True
    return False


def _read(descriptor: int) -> Holder | None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return _parse(os.read(descriptor, 4096))


def _parse(content: bytes) -> Holder | None:
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):  # the file is new and empty
        return None


def _write(descriptor: int, holder: Holder) -> None:
    content = json.dumps(asdict(holder)).encode()
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, content)
    os.ftruncate(descriptor, len(content))


def _beat(descriptor: int, ended: threading.Event) -> None:
    holder = _read(descriptor) or Holder.this_process()
    beat = 0
    while not ended.wait(_BEAT):
        beat += 1
        with contextlib.suppress(OSError):  # a full disk: the system's lock still holds
            _write(descriptor, Holder(**{**asdict(holder), "beat": beat}))


def _release(path: Path, descriptor: int) -> None:
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        if os.name == "posix" and _is_same_file(descriptor, path):
            path.unlink()  # before unlocking: waiting processes check that it still exists
    os.close(descriptor)
    with contextlib.suppress(OSError):
        if os.name != "posix":
            path.unlink()  # on Windows this fails if another process has opened it


def _forget_in_child() -> None:
    """Close inherited descriptors in a forked child; the lock stays with the parent."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
