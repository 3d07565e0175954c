"""Makes Python lack what other systems lack, in every process that has this folder on PYTHONPATH.

Windows has no fork, no process groups, few signals and neither `resource` nor `fcntl`; macOS spawns too: what works
under this works there as far as these go. The suite is run so by `tests/test_elsewhere.py`.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import warnings

for _name in ("fork", "forkpty", "killpg", "sched_getaffinity"):
    with contextlib.suppress(AttributeError):
        delattr(os, _name)
# Not SIGCHLD and SIGUSR1: torch and Lightning take them for granted where `sys.platform` is not Windows
for _name in ("SIGUSR2", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGALRM", "alarm", "pause"):
    with contextlib.suppress(AttributeError):
        delattr(signal, _name)
for _name in ("resource", "fcntl"):
    sys.modules[_name] = None  # type: ignore[assignment]
multiprocessing.set_start_method("spawn")
multiprocessing.get_all_start_methods = lambda: ["spawn"]  # type: ignore[assignment]
# Our own modules name the encoding of every text file, but of what the system or another program writes
_EXCEPT = r"memory$|doctor\.facts$|environments$|alignment\.parameters$"
if sys.flags.warn_default_encoding:
    warnings.filterwarnings("error", category=EncodingWarning, module=rf"nest_ssl\.(?!{_EXCEPT})")
