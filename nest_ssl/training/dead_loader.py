"""A loader process that died: what torch says of it, as one line that says what to do."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any

# torch's words, from its handler of a child's end or from the next request for a batch
_DEAD = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?:is killed by signal: (?P<signal>[^.]+)|exited)"
)
_GO_ON = "the same command goes on from the last checkpoint"


def dead_loader(error: BaseException, step: int) -> str | None:
    """What has happened and what to do, if an error of the training loop means that a loader process has died."""
    found = _DEAD.search(str(error))
    if found is None:
        return None
    process = f"a loader process ({found['pids'].strip()}) died at step {step}"
    if found["signal"] == "Bus error":
        return (
            f"{process}: shared memory is full; give it more (docker run --shm-size=8g), or lower "
            f"model.train_ds.num_workers or prefetch_factor; {_GO_ON}"
        )
    by = f" of the signal {found['signal']!r}" if found["signal"] else ""
    return (
        f"{process}{by}: most often the machine's memory is full; lower model.train_ds.num_workers, prefetch_factor or "
        f"batch_size; {_GO_ON}"
    )


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Within the block, Python prints no traceback of a loader's death where it cannot be raised.

    Torch raises it from a signal handler, so also while loaders are taken down; whoever asks for a batch hears of it.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_value is None or dead_loader(unraisable.exc_value, 0) is None:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
