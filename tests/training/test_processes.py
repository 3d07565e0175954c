"""Torch's errors about worker processes that died become messages with a cause and advice."""

from __future__ import annotations

import pytest

from nest_ssl.training.processes import dead_worker


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
