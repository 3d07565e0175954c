"""Libraries that talk while they are only tried."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_libraries(level: int = logging.WARNING) -> Iterator[None]:
    """Within the block, nothing is logged up to this level, and nobody is warned."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
