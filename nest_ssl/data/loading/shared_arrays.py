"""Large arrays that workers share: forked workers inherit them, spawned workers map the same file.

Pickled arrays would be copied into each process. Shared memory is not used: containers often have too little of it.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from nest_ssl.compat import is_starting_a_process

_WORTH_A_FILE = 2**20  # bytes


class SharedArray:
    """A read-only array; for a process that is being started, it is pickled as the name of a file."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __reduce__(self) -> tuple[Any, ...]:
        if is_starting_a_process() and self.values.nbytes >= _WORTH_A_FILE:
            with suppress(OSError):  # no space for temporary files: pickle a copy
                return _mapped, (self._file,)
        return SharedArray, (self.values,)

    @cached_property
    def _file(self) -> str:
        """The file with the array: written for the first process, removed with the array or when this process ends."""
        descriptor, name = tempfile.mkstemp(prefix="nest_ssl-", suffix=".npy")
        weakref.finalize(self, _remove, name)
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, self.values)
        return name


def _mapped(name: str) -> SharedArray:
    return SharedArray(np.load(name, mmap_mode="r"))


def _remove(name: str) -> None:
    with suppress(OSError):  # Windows keeps a file that another process still maps
        os.unlink(name)  # noqa: PTH108
