from __future__ import annotations

import multiprocessing
import os
import sys
import time

import pytest

from nest_ssl.memory import (
    TOO_LARGE,
    available_memory,
    end_above,
    machine_memory,
    peak_bytes,
    reset_peak,
    used_bytes,
)
from tests.waiting import PATIENCE

SIZE = 200 * 10**6


def test_available_memory_is_part_of_all_memory() -> None:
    assert 0 < available_memory() <= machine_memory()


def test_the_peak_includes_freed_memory() -> None:
    reset_peak()
    before = used_bytes()
    block = bytearray(SIZE)
    block[::4096] = b"x" * len(block[::4096])
    del block
    assert peak_bytes() >= before + SIZE * 0.9


@pytest.mark.skipif(sys.platform != "linux", reason="other systems remember the peak of the whole process")
def test_the_peak_can_be_reset() -> None:
    block = bytearray(b"x" * SIZE)
    del block
    reset_peak()
    assert peak_bytes() < used_bytes() + SIZE / 2


def _take_too_much() -> None:
    end_above(used_bytes() + SIZE // 2)
    _kept = bytearray(b"x" * SIZE)
    time.sleep(120)


def test_a_process_ends_itself_if_it_exceeds_its_limit() -> None:
    process = multiprocessing.get_context("spawn").Process(target=_take_too_much)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == TOO_LARGE


def test_the_machines_memory_is_known() -> None:
    assert 2**28 < machine_memory() < 2**50
    if hasattr(os, "sysconf"):
        assert machine_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
