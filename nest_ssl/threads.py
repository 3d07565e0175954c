"""How long OpenMP's threads, which compute for torch, keep their cores while they wait for work."""

from __future__ import annotations

import os

# GCC's OpenMP (Linux) counts turns of a loop, that of LLVM and Intel (macOS, Windows) milliseconds.
SHORT_WAIT = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
CHOICES = ("OMP_WAIT_POLICY", "KMP_LIBRARY", *SHORT_WAIT)  # variables with which users choose themselves


def sleep_soon() -> None:
    """Let waiting threads sleep after a short time; call it before torch is imported.

    By default they wait on their cores for milliseconds, hundreds of times a step. If another program needs a core, the
    thread that has work waits for the thread that has none. What users set in the environment is left alone.
    """
    if not any(name in os.environ for name in CHOICES):
        os.environ.update(SHORT_WAIT)
