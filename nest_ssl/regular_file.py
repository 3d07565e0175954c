"""Files that are files: reading a named pipe waits for ever, and a device such as /dev/zero never ends.

A path from a manifest or a command line is opened here, or checked here before a library opens it by name. What is no
regular file raises an `OSError` whose `strerror` says so in words that follow the path: `no such file`, `is a folder`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

# names that stand for devices in every folder of Windows, with any suffix (`NUL`, `con.wav`), and its folder of devices
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])[ .]*([.:].*)?", re.IGNORECASE)
_WINDOWS_DEVICES = ("\\\\.\\", "//./")
# O_NONBLOCK: a pipe that took the file's place after the look at it does not make us wait for somebody who writes to it
_OPENING = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY", "O_NOINHERIT"))
_SPECIAL: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading bytes; what was opened is looked at again, in case it was exchanged meanwhile."""
    check_regular(path)
    descriptor = os.open(path, _OPENING)
    try:
        _refuse_special(os.fstat(descriptor).st_mode, path)
        return open(descriptor, "rb")  # noqa: PTH123 - a descriptor
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: Path | str) -> os.stat_result:
    """Raise an `OSError` unless a regular file is there, possibly through links; return what the system knows of it."""
    name = os.fspath(path)
    if "\0" in name:
        raise OSError(errno.EINVAL, "is not a path: it holds a NUL character", name)
    if os.name == "nt" and is_windows_device(name):
        raise OSError(errno.EINVAL, "is not a regular file (a device)", name)
    try:
        found = os.stat(name)  # noqa: PTH116 - plain strings: this runs for every item that is read
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(errno.ENOENT, _missing(name), name) from None
    except UnicodeEncodeError:
        raise FileNotFoundError(errno.ENOENT, "no such file", name) from None
    _refuse_special(found.st_mode, path)
    return found


def why_not_regular(path: Path | str) -> str | None:
    """Why a path cannot be read as a file, in words that follow the path, or None if it can be tried."""
    try:
        check_regular(path)
    except OSError as error:
        return error.strerror or str(error)
    return None


def is_windows_device(name: str) -> bool:
    """Whether Windows takes a path for a device rather than for a file."""
    last = re.split(r"[\\/]", name)[-1]
    return name.startswith(_WINDOWS_DEVICES) or _WINDOWS_DEVICE.fullmatch(last) is not None


def _missing(name: str) -> str:
    if not os.path.islink(name):  # noqa: PTH114
        return "no such file"
    return f"no such file (a link to {os.readlink(name)!r}, where there is none)"  # noqa: PTH115


def _refuse_special(mode: int, path: Path | str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder", os.fspath(path))
    if not stat.S_ISREG(mode):
        kind = next((words for is_kind, words in _SPECIAL if is_kind(mode)), "of a kind that cannot be read")
        raise OSError(errno.EINVAL, f"is not a regular file ({kind})", os.fspath(path))
