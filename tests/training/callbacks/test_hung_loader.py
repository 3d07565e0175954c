"""After a signal, an endless wait for data is ended, but a slow step is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE

SCRIPT = """
import signal, time
from nest_ssl.training.callbacks import stopping
stopping.PATIENCE = 1.0
signal.signal(signal.{name}, lambda *_: None)
since = time.monotonic() if {waits} else None
watch = stopping.HungLoaderWatch(lambda: since)
signal.raise_signal(signal.{name})
time.sleep({seconds})
watch.close()
print("closed")
"""


def run(name: str, waits: bool, seconds: int) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(name=name, waits=waits, seconds=seconds)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_process_that_waits_for_data_ends_after_a_signal(name: str) -> None:
    ended = run(name, waits=True, seconds=100_000)
    assert ended.returncode == 128 + getattr(signal, name)
    assert "leaves without saving" in ended.stderr


def test_a_step_may_take_as_long_as_it_needs() -> None:
    ended = run("SIGTERM", waits=False, seconds=3)
    assert (ended.returncode, ended.stdout) == (0, "closed\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_workers_neither_delay_nor_trigger_the_watchdog() -> None:
    script = """
import os, signal, time
from nest_ssl.training.callbacks import stopping
stopping.PATIENCE = 1.0
signal.signal(signal.SIGTERM, lambda *_: None)
since = time.monotonic()
watch = stopping.HungLoaderWatch(lambda: since)
worker = os.fork()
if worker == 0:
    signal.raise_signal(signal.SIGTERM)
    time.sleep(100_000)
time.sleep(3)
watch.close()
os.kill(worker, signal.SIGKILL)
print("closed")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (0, "closed\n")


def test_other_signals_are_ignored() -> None:
    if not hasattr(signal, "SIGUSR1"):
        pytest.skip("this system has no such signal")
    ended = run("SIGUSR1", waits=True, seconds=3)
    assert (ended.returncode, ended.stdout) == (0, "closed\n")
