"""Time limits that only a hanging program exceeds, so that tests also pass on a busy machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

PATIENCE = 900.0  # seconds


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Return as soon as the condition holds; fail after a time limit that no working program needs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {PATIENCE:g} s {what}".rstrip()
        time.sleep(0.01)


def random_draws() -> random.Random:
    """Return a random generator whose seed pytest shows if the test fails."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)
