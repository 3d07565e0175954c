"""Atomic writing: a file has its old content or all of the new."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nest_ssl import atomic
from nest_ssl.atomic import atomic_write, remove_leftovers


def test_the_new_content_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file.bin"
    for content in (b"first", b"second"):
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_nothing_is_visible_under_the_name_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"half")
        assert not path.exists()
        assert temporary.parent == path.parent  # a rename across disks would not be atomic


def test_a_failure_while_writing_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with atomic_write(path) as temporary:
            temporary.write_bytes(b"half of the new")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_reaches_the_disk_before_the_name_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("flush"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    with atomic_write(tmp_path / "file.bin") as temporary:
        temporary.write_bytes(b"content")
    assert calls[:2] == ["flush", "rename"]


def test_only_the_leftover_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a[1].nemo"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leftover = tmp_path / f".a[1].nemo.{atomic._machine()}-{dead.pid}-0123abcd.tmp"
    other = tmp_path / f".b.nemo.{atomic._machine()}-{dead.pid}-0123abcd.tmp"
    leftover.write_bytes(b"half")
    other.write_bytes(b"of another file")
    with atomic_write(path) as temporary:
        temporary.write_bytes(b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([other, path])


def test_two_writers_of_one_path_do_not_remove_each_others_files(tmp_path: Path) -> None:
    """The other writer is a process, or a thread of this process."""
    path = tmp_path / "model.nemo"
    other, being_written = leave_half(tmp_path, path.name, "sys.stdin.read()")
    with atomic_write(path) as first, atomic_write(path) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
        assert being_written.exists()
    assert path.read_bytes() == b"first"
    other.communicate()
    assert other.returncode == 0
    assert path.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_the_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_bytes(b"")
    with atomic_write(tmp_path / "file.bin") as temporary:
        temporary.write_bytes(b"")
    assert (tmp_path / "file.bin").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_streamed_bytes_arrive_complete_for_all_sizes_and_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_FLUSH_EVERY", 1000)
    pieces = [os.urandom(size) for size in (1, 999, 100_000, 7, 20_000, 0, 3)]
    with atomic.open_streaming(tmp_path / "file.bin") as file:
        for piece in pieces:
            file.write(memoryview(piece))
        file.seek(0)
        file.write(b"header")
        file.seek(0, 2)
        file.write(b"end")
    assert (tmp_path / "file.bin").read_bytes() == b"header" + b"".join(pieces)[6:] + b"end"


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system takes no advice on files")
def test_a_file_system_without_fadvise_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(*arguments: int) -> None:
        asked.append(arguments[0])
        raise OSError("no such operation")

    monkeypatch.setattr(atomic, "_FLUSH_EVERY", 10)
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    with atomic.open_streaming(tmp_path / "file.bin") as file:
        file.write(bytes(100_000))
    assert asked
    assert (tmp_path / "file.bin").stat().st_size == 100_000


def leave_half(folder: Path, name: str, then: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Return a process that writes half of `name` and then runs `then`, and the temporary file that it wrote."""
    code = f"""
import os, signal, sys
from nest_ssl.atomic import atomic_write
with atomic_write({str(folder / name)!r}) as temporary:
    temporary.write_bytes(b"half")
    print(temporary, flush=True)
    {then}
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().decode().strip())


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_temporary_files_of_dead_processes_are_removed_and_of_living_ones_kept(tmp_path: Path) -> None:
    dead, left = leave_half(tmp_path, "step=1-last.ckpt", "os.kill(os.getpid(), signal.SIGKILL)")
    alive, being_written = leave_half(tmp_path, "step=2-last.ckpt", "sys.stdin.read()")
    dead.wait()
    for name in (".a.nemo.0123abcd.tmp", "a.ckpt", ".b.ckpt.tmp"):
        (tmp_path / name).write_bytes(b"something else")
    assert left.exists()
    remove_leftovers(tmp_path, "*.ckpt")
    assert not left.exists()
    assert being_written.exists()
    alive.communicate()
    assert alive.returncode == 0
    remaining = {path.name for path in tmp_path.iterdir()}
    assert remaining == {".a.nemo.0123abcd.tmp", "a.ckpt", ".b.ckpt.tmp", "step=2-last.ckpt"}


def test_temporary_files_of_another_machine_are_removed_once_they_are_old(tmp_path: Path) -> None:
    young, old = tmp_path / ".a.ckpt.ffffffff-1-0123abcd.tmp", tmp_path / ".b.ckpt.ffffffff-1-0123abcd.tmp"
    for path in (young, old):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    remove_leftovers(tmp_path, "*.ckpt")
    assert young.exists()
    assert not old.exists()
