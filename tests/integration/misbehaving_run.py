"""Run `train.py` so that reading audio fails as soon as a file exists that an environment variable names.

MISBEHAVE_HANG: reading waits forever, in C code that no signal interrupts. MISBEHAVE_DIE: the process is killed, as by
a system whose memory is full. MISBEHAVE_PATIENCE: seconds that data may hang after a signal. Workers are forked from
this process, or import it again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

from nest_ssl.data.dataset import AudioNoiseDataset
from nest_ssl.training.callbacks import stopping

_read = AudioNoiseDataset.read


def _exists(variable: str) -> bool:
    return bool(os.environ.get(variable)) and Path(os.environ[variable]).exists()


def read(self: AudioNoiseDataset, *arguments: Any, **options: Any) -> Any:
    if _exists("MISBEHAVE_DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    if _exists("MISBEHAVE_HANG"):
        mutex = ctypes.create_string_buffer(64)  # zeros: PTHREAD_MUTEX_INITIALIZER
        for _ in range(2):
            ctypes.CDLL(None).pthread_mutex_lock(mutex)
    return _read(self, *arguments, **options)


stopping.PATIENCE = float(os.environ.get("MISBEHAVE_PATIENCE", stopping.PATIENCE))
AudioNoiseDataset.read = read  # type: ignore[method-assign]

if __name__ == "__main__":
    from nest_ssl.training.run import main

    sys.exit(main(config_dir=Path(__file__).parents[2] / "config"))
