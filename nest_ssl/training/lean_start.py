"""Imports Lightning in two thirds of its time; import this before anything that imports Lightning.

Where scipy is installed, torchmetrics, which Lightning needs, loads all of scipy.signal only to give it back a name
that it lost (`hamming`), for a package that is not used here. And while a few thousand modules load, nothing becomes
garbage that would be worth looking for.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from types import ModuleType


@contextlib.contextmanager
def stand_in(name: str, **content: object) -> Iterator[None]:
    """Within the block, `name` is a module of this content; one that is loaded already stays, and is used."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)
    try:
        yield
    finally:
        del sys.modules[name]


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within the block, reference counts alone free memory."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


with no_garbage_collection():
    # A torchmetrics that wants more of it fails here, and Lightning loads it again, then with the real one.
    with contextlib.suppress(ImportError, AttributeError), stand_in("scipy.signal", hamming=None):
        import torchmetrics  # noqa: F401
    import lightning.pytorch  # noqa: F401
