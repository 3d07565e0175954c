"""Open regular files only: reading a named pipe waits forever, and a device such as /dev/zero never ends.

Paths from manifests and command lines are opened here, or checked here before a library opens them. Anything else than
a regular file raises an `OSError` whose `strerror` can follow the path: `no such file`, `is a folder`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

# names of devices, which Windows has in every folder and with any suffix (`NUL`, `con.wav`), and its folder of devices
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])[ .]*([.:].*)?", re.IGNORECASE)
_WINDOWS_DEVICES = ("\\\\.\\", "//./")
# O_NONBLOCK: if a pipe replaced the file after the check, opening it does not wait for a writer
_OPENING = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY", "O_NOINHERIT"))
_SPECIAL: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading bytes; the opened file is checked again, as it may have been replaced."""
    check_regular(path)
    descriptor = os.open(path, _OPENING)
    try:
        _refuse_special(os.fstat(descriptor).st_mode, path)
        return open(descriptor, "rb")  # noqa: PTH123 - a descriptor
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: Path | str) -> os.stat_result:
    """Raise an `OSError` unless the path is a regular file or a link to one; return its status."""
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
    """Return why a path is no regular file, in words that can follow the path; None if it is one."""
    try:
        check_regular(path)
    except OSError as error:
        return error.strerror or str(error)
    return None


def is_windows_device(name: str) -> bool:
    """Return whether Windows treats a path as a device."""
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
