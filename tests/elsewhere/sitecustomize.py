"""Makes Python lack what other systems lack, in every process that has this folder on PYTHONPATH.

Windows has no fork, no process groups and few signals, macOS spawns too: what works under this works there as far as
these go. The suite is run so by `tests/test_elsewhere.py`.
"""

import contextlib
import multiprocessing
import os
import signal

for _name in ("fork", "forkpty", "killpg", "sched_getaffinity"):
    with contextlib.suppress(AttributeError):
        delattr(os, _name)
for _name in ("SIGUSR2", "SIGHUP", "SIGQUIT", "SIGALRM", "alarm"):
    with contextlib.suppress(AttributeError):
        delattr(signal, _name)
multiprocessing.set_start_method("spawn")
multiprocessing.get_all_start_methods = lambda: ["spawn"]  # type: ignore[assignment]
