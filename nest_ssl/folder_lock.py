"""One process at a time writes into a folder: who holds it, and a lock that a dead process cannot keep.

The system's own lock on a small file decides; the kernel releases it when its process ends, however it ends. Some file
systems that several machines share lock for one machine only, or not at all: there the holder's heartbeat decides, a
number in the same file that it raises every few seconds. Only the standard library, because start.py runs it before
anything is installed.
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
_SILENCE = 3 * _BEAT  # of a process that has ended
_FAR_AWAY = 2**30  # the byte that Windows locks: others cannot read what is locked
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
_held: set[int] = set()  # descriptors: a forked process would keep the lock of one that is gone


class FolderInUse(NestError):
    """Another process is writing there; the message says which one."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

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
    """Hold a folder, which is made if it is not there; raise `FolderInUse` if another process does, with `advice`.

    With `waiting`, wait for that one instead, once it was told who it is.
    """
    with lock_file(folder / LOCK, advice, waiting):
        yield


@contextlib.contextmanager
def lock_file(path: Path, advice: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """The same with a lock file of another name. Neither it nor the folders made for it outlive the block, if empty."""
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
    """Whether this machine has a process of that number."""
    if os.name == "posix":
        try:
            os.kill(number, 0)  # only asks; on Windows it would end the process
        except ProcessLookupError:
            return False
        except OSError:  # it lives, and is somebody else's
            pass
        return True
    import ctypes

    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(kernel.OpenProcess(0x1000, False, number))  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return kernel.GetLastError() == 5  # access denied: it is somebody else's
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == 259  # STILL_ACTIVE


def _make_folders(folder: Path) -> list[Path]:
    """Those that were missing, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    _make_folder(folder)
    return missing


def _make_folder(folder: Path) -> None:
    """Make it although others may be making and removing it at the same time."""
    while True:
        try:
            return folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError):  # removed since it was found, or a folder above was
            if any(path.is_file() or (path.is_symlink() and not path.exists()) for path in (folder, *folder.parents)):
                raise  # because of what is in the way


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
    """The descriptor of the locked file; or who has locked it, as far as that can be read."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except FileNotFoundError:  # whoever made the folder has removed it
            _make_folder(path.parent)
            continue
        try:
            state = _lock(descriptor)
            holder = _read(descriptor)
            if state == "busy":
                return holder
            if not _is_same_file(descriptor, path):  # its holder has removed it just now
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
    """Take the system's lock; whether nobody else has it is unknown where the file system has none."""
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
    """Whether the holder's heart beats; where its process was on this machine and is gone, that is known at once."""
    if holder.host == platform.node():
        if holder.process == os.getpid():  # or an earlier process with this number
            return any(_is_same_file(descriptor, path) for descriptor in _held)
        if not process_lives(holder.process):
            return False
    end = time.monotonic() + _SILENCE
    while time.monotonic() < end:
        time.sleep(0.2)
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))  # again: NFS reads anew on opening
        except FileNotFoundError:  # it has ended properly
            return False
        try:
            now = _read(descriptor)
        finally:
            os.close(descriptor)
        if now is not None and now != holder:
            return True
    return False


def _read(descriptor: int) -> Holder | None:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        content = json.loads(os.read(descriptor, 4096))
        return Holder(**content)
    except (OSError, ValueError, TypeError):  # it has just been made
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
        with contextlib.suppress(OSError):  # a disk that is full: the system's lock holds all the same
            _write(descriptor, Holder(**{**asdict(holder), "beat": beat}))


def _release(path: Path, descriptor: int) -> None:
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        if os.name == "posix" and _is_same_file(descriptor, path):
            path.unlink()  # before it is unlocked: who waits for it looks whether it is still there
    os.close(descriptor)
    with contextlib.suppress(OSError):
        if os.name != "posix":
            path.unlink()  # Windows keeps an open file, so also one that another process has opened since


def _forget_in_child() -> None:
    """Close what a forked process has inherited; the lock stays with its parent."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
