"""Errors of a run whose memory is full or whose processes died: each becomes one line with a cause and advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nest_ssl.errors import NestError
from nest_ssl.training.trainer import dead_worker, fit


def test_full_memory_gives_one_line_that_names_keys_to_lower() -> None:
    class Trainer:
        global_step = 7

        def fit(self, model: Any, ckpt_path: Path | None) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(NestError, match=r"^the GPU's memory is full at step 7; lower model.train_ds.batch_size and"):
        fit(Trainer(), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "DataLoader worker (pid 12) is killed by signal: Killed. ",
            "(12) died at step 7 of the signal 'Killed': most",
        ),
        (
            "DataLoader worker (pid(s) 12, 13) exited unexpectedly",
            "a loader process (12, 13) died at step 7: most often",
        ),
        (
            "DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that dataloader's workers are "
            "out of shared memory. Please try to raise your shared memory limit.",
            "(12) died at step 7: shared memory is full; give it more (docker run --shm-size=8g)",
        ),
    ],
)
def test_the_cause_and_a_remedy_are_named(message: str, expected: str) -> None:
    line = dead_worker(RuntimeError(message), 7)
    assert line is not None
    assert expected in line
    assert line.endswith("; the same command continues from the last checkpoint")


def test_other_errors_are_unchanged() -> None:
    assert dead_worker(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 7) is None
