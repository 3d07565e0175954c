"""Make Python behave as on other systems, in every process with this folder on PYTHONPATH, and in its children.

Windows has no fork, no process groups, few signals, no /dev/shm and neither `resource` nor `fcntl`, and lines of its
text files end with CRLF. macOS spawns processes, too. Code that works here does not depend on any of these.
`python -m tests.elsewhere` runs all tests in this way, `tests/test_elsewhere.py` the most important ones.
"""

import builtins
import contextlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent)
_SHARED_MEMORY = "/dev/shm"

for _name in (
    *("fork", "forkpty", "killpg", "setpgid", "getpgid", "getpgrp", "setsid", "getsid"),
    *("sched_getaffinity", "getloadavg", "nice", "mkfifo", "posix_fadvise", "posix_fallocate"),
):
    with contextlib.suppress(AttributeError):
        delattr(os, _name)
# SIGCHLD, SIGUSR1, SIGKILL and SIGSTOP stay: torch, Lightning and subprocess use them if `sys.platform` is not Windows.
# Functions that macOS has stay, too: code may use them if `os.name` is "posix".
for _name in (
    *("SIGUSR2", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGALRM", "SIGTSTP", "SIGCONT", "SIGWINCH"),
    *("alarm", "pause", "setitimer", "sigtimedwait"),
):
    with contextlib.suppress(AttributeError):
        delattr(signal, _name)
for _name in ("resource", "fcntl", "pwd", "grp", "pty"):
    sys.modules[_name] = None  # type: ignore[assignment]
multiprocessing.set_start_method("spawn")
multiprocessing.get_all_start_methods = lambda: ["spawn"]  # type: ignore[assignment]
# Our own modules name the encoding of every text file, but of what the system or another program writes
_EXCEPT = r"memory$|environments$|apps\.doctor\.machine$|apps\.alignment\.parameters$"
if sys.flags.warn_default_encoding:
    warnings.filterwarnings("ignore", category=EncodingWarning)
    warnings.filterwarnings("error", category=EncodingWarning, module=rf"nest_ssl\.(?!{_EXCEPT})")


# Lines of a text file end with CRLF unless `newline` is given
_open = io.open


def _open_with_crlf(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):  # type: ignore[no-untyped-def]
    if newline is None and "b" not in mode and set(mode) & set("wax"):
        newline = "\r\n"
    if encoding is None and "b" not in mode:
        encoding = io.text_encoding(encoding, 2)  # the warning names the caller
    return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)


_open_with_crlf.__name__ = _open_with_crlf.__qualname__ = "open"  # its name in a pickle
_open_with_crlf.__module__ = "builtins"
builtins.open = io.open = _open_with_crlf  # type: ignore[assignment]


# Python code does not see /dev/shm; C code needs it on Linux
def _without_shared_memory(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(_SHARED_MEMORY):
        raise FileNotFoundError(2, "not on this system", arguments[0])


_statvfs = getattr(os, "statvfs", None)  # Windows does not have it


def _statvfs_without_shared_memory(path):  # type: ignore[no-untyped-def]
    if str(path).startswith(_SHARED_MEMORY):
        raise FileNotFoundError(2, "not on this system", path)
    return _statvfs(path)


sys.addaudithook(_without_shared_memory)
if _statvfs is not None:
    os.statvfs = _statvfs_without_shared_memory


# A process that is started with another environment also gets this folder on PYTHONPATH
_start = subprocess.Popen.__init__


def _start_elsewhere(self, *arguments, env=None, **keywords):  # type: ignore[no-untyped-def]
    if env is not None and _HERE not in str(env.get("PYTHONPATH", "")):
        env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, (_HERE, env.get("PYTHONPATH"))))}
    _start(self, *arguments, env=env, **keywords)


subprocess.Popen.__init__ = _start_elsewhere  # type: ignore[method-assign]
