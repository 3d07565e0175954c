"""Large arrays that loader processes share: a forked one has them anyway, a spawned one maps the same file.

Sent as they are, each process would hold a copy of its own. A file is used rather than shared memory, of which
containers often have too little.
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
    """An array that nobody changes. For a process that is being started it travels as the name of a file."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __reduce__(self) -> tuple[Any, ...]:
        if is_starting_a_process() and self.values.nbytes >= _WORTH_A_FILE:
            with suppress(OSError):  # no room for temporary files: then a copy
                return _mapped, (self._file,)
        return SharedArray, (self.values,)

    @cached_property
    def _file(self) -> str:
        """Written when the first process needs it, removed with the array or at the end of this process."""
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
