"""Imports Lightning in two thirds of its time; import this before anything that imports Lightning.

Where scipy is installed, torchmetrics, which Lightning needs, loads all of scipy.signal only to give it back a name
that it lost (`hamming`), for a package that is not used here. It loads all of matplotlib for plots that nobody asks it
for. And while a few thousand modules load, nothing becomes garbage that would be worth looking for.
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
def left_out(package: str) -> Iterator[None]:
    """Within the block, Lightning's packages take `package` for not installed, unless it is loaded already."""
    from lightning_utilities.core.imports import RequirementCache

    check = RequirementCache._check_requirement

    def answer(cache: RequirementCache) -> None:
        if cache.requirement != package or package in sys.modules:
            check(cache)
        else:
            cache.available, cache.message = False, f"{package} is left out of training"

    RequirementCache._check_requirement = answer  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        RequirementCache._check_requirement = check  # type: ignore[method-assign]


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
    # A torchmetrics that wants more of them fails here, and Lightning loads it again, then with the real ones.
    with (
        contextlib.suppress(ImportError, AttributeError),
        stand_in("scipy.signal", hamming=None),
        left_out("matplotlib"),
    ):
        import torchmetrics  # noqa: F401
    import lightning.pytorch  # noqa: F401
