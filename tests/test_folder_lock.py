"""The lock of a folder: one process at a time holds it; tested with processes that run, die and fork."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest_ssl import folder_lock
from nest_ssl.folder_lock import LOCK, FolderInUse, lock_folder, process_lives

NO_SYSTEM_LOCK = "folder_lock.fcntl = folder_lock.msvcrt = None"
HOLD = """
import os, sys, time, signal
from pathlib import Path
from nest_ssl import folder_lock
{before}
with folder_lock.lock_folder(Path(sys.argv[1]), "wait"):
    {within}
    print("held", os.getpid(), flush=True)
    sys.stdin.read()
"""
Process = subprocess.Popen[str]


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """A list for the processes that the test starts; they are killed at its end."""
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def hold(started: list[Process], folder: Path, within: str = "pass", before: str = "") -> Process:
    """Start a process that holds the folder until its standard input ends."""
    code = HOLD.format(within=within, before=before)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("held")
    return process


def test_the_error_of_a_second_process_names_the_holder(tmp_path: Path, processes: list[Process]) -> None:
    holder = hold(processes, tmp_path)
    with pytest.raises(FolderInUse) as refused, lock_folder(tmp_path, "wait for its end"):
        pytest.fail("two hold it")
    message = str(refused.value)
    assert message.startswith(f"{tmp_path}: is in use by process {holder.pid} on {platform.node()} since 20")
    assert f"(-c {tmp_path})" in message
    assert message.endswith("; wait for its end")
    assert "\n" not in message


def test_a_folder_is_free_again_after_the_block_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        with lock_folder(folder, "wait"):
            assert [path.name for path in folder.iterdir()] == [LOCK]
        assert list(tmp_path.iterdir()) == []
    with lock_folder(folder, "wait"):
        (folder / "result").touch()
    assert [path.name for path in folder.iterdir()] == ["result"]


def test_one_process_does_not_hold_a_folder_twice(tmp_path: Path) -> None:
    with lock_folder(tmp_path, "wait"):
        refused = pytest.raises(FolderInUse, match=f"process {os.getpid()} ")
        with refused, lock_folder(tmp_path, "wait"):
            pytest.fail("held twice")


@pytest.mark.parametrize("before", ["", NO_SYSTEM_LOCK], ids=["lock", "no lock"])
def test_a_killed_process_loses_its_lock(
    tmp_path: Path, processes: list[Process], before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before:
        monkeypatch.setattr(folder_lock, "fcntl", None)
        monkeypatch.setattr(folder_lock, "msvcrt", None)
    holder = hold(processes, tmp_path, before=before)
    holder.kill()
    holder.wait()
    assert (tmp_path / LOCK).exists()
    monkeypatch.setattr(folder_lock, "_SILENCE", 1e9)  # a dead process is recognised without waiting
    with lock_folder(tmp_path, "wait"):
        assert json.loads((tmp_path / LOCK).read_bytes())["process"] == os.getpid()


@pytest.mark.skipif(not hasattr(os, "fork") or folder_lock.fcntl is None, reason="fork")
def test_a_forked_child_that_survives_does_not_keep_the_lock(tmp_path: Path, processes: list[Process]) -> None:
    child = tmp_path / "child"
    fork = f"""
    child = Path({str(child)!r})
    if os.fork() == 0:
        os.close(0), os.close(1), os.close(2)
        child.with_suffix(".new").write_text(str(os.getpid()))
        child.with_suffix(".new").replace(child)  # by now it has closed what it got of the lock
        time.sleep(600)
    while not child.exists():
        time.sleep(0.01)"""
    holder = hold(processes, tmp_path / "run", within=fork)
    holder.kill()
    holder.wait()
    number = int(child.read_text())
    try:
        assert process_lives(number)
        with lock_folder(tmp_path / "run", "wait"):
            pass
    finally:
        os.kill(number, signal.SIGKILL)


def test_a_process_that_may_wait_says_so_once(tmp_path: Path, processes: list[Process]) -> None:
    holder = hold(processes, tmp_path)
    heard: list[str] = []

    def told(who: str) -> None:
        heard.append(who)
        assert holder.stdin is not None
        threading.Timer(0.5, holder.stdin.close).start()

    with lock_folder(tmp_path, "wait", waiting=told):
        assert len(heard) == 1
        assert heard[0].startswith(f"process {holder.pid} on ")


def test_many_processes_take_the_lock_one_after_the_other(tmp_path: Path) -> None:
    """A process that opened the file just before it was removed must not believe that it holds the folder."""
    code = """
import sys
from pathlib import Path
from nest_ssl.folder_lock import lock_folder
folder, count = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(40):
    with lock_folder(folder, "wait", waiting=lambda who: None):
        count.write_text(str(int(count.read_text()) + 1))
"""
    count = tmp_path / "count"
    count.write_text("0")
    if folder_lock.fcntl is None and folder_lock.msvcrt is None:
        pytest.skip("no lock of the system's")
    command = [sys.executable, "-c", code, str(tmp_path / "folder"), str(count)]
    started = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(timeout=300) for process in started] == [0] * 4
    assert count.read_text() == "160"
    assert not (tmp_path / "folder" / LOCK).exists()


def elsewhere(folder: Path, beat: int = 0) -> None:
    """Write the lock file of a process on another machine."""
    record = {"host": "node07", "process": 4711, "since": "today", "command": "train.py", "beat": beat}
    (folder / LOCK).write_text(json.dumps(record))


def test_a_process_of_another_machine_holds_the_folder_while_it_updates_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the operating system may be visible on one machine only."""
    monkeypatch.setattr(folder_lock, "_SILENCE", 60)
    elsewhere(tmp_path)
    beats = threading.Timer(0.5, elsewhere, (tmp_path, 1))
    beats.start()
    refused = pytest.raises(FolderInUse, match=r"process 4711 on node07 since today \(train\.py\)")
    with refused, lock_folder(tmp_path, "wait"):
        pytest.fail("its heart beats")
    beats.join()


def test_a_process_of_another_machine_that_stopped_updating_the_file_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "_SILENCE", 0.5)
    elsewhere(tmp_path)
    with lock_folder(tmp_path, "wait"):
        assert json.loads((tmp_path / LOCK).read_bytes())["process"] == os.getpid()


def test_the_file_is_updated_as_long_as_the_folder_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "_BEAT", 0.05)
    with lock_folder(tmp_path, "wait"):
        end = time.monotonic() + 60
        while json.loads((tmp_path / LOCK).read_bytes())["beat"] < 3:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_without_a_system_lock_the_updates_of_the_file_decide(
    tmp_path: Path, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "fcntl", None)
    monkeypatch.setattr(folder_lock, "msvcrt", None)
    monkeypatch.setattr(folder_lock, "_SILENCE", 60)
    holder = hold(processes, tmp_path, before=f"{NO_SYSTEM_LOCK}; folder_lock._BEAT = 0.2")
    with pytest.raises(FolderInUse, match=f"process {holder.pid} "), lock_folder(tmp_path, "wait"):
        pytest.fail("it lives")


def test_a_process_lives_until_it_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    assert process_lives(process.pid)
    process.communicate()
    assert not process_lives(process.pid)
