"""Memory of this machine and of this process.

The library psutil does not know the limits of containers, nor the peak on Linux and macOS, so it would save little.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

TOO_LARGE = 77  # exit code of a process that exceeded its limit and ended itself
_LOOK_EVERY = 0.02  # seconds


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of the container that the process runs in."""
    found = [_physical_memory()]
    for name in ("memory.max", "memory.limit_in_bytes"):
        found.extend(int(limit) for limit in group_limits(name) if limit.isdigit())  # "max": none
    return min(found)


def available_memory() -> int:
    """Return the bytes that a new process could use now without swapping or killing anything."""
    found = [_system_available(), *_left_in_groups()]
    return max(0, min(found))


def reset_peak() -> None:
    """Reset the peak, where the system can, and return freed memory to it."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the peak memory of this process: since `reset_peak` on Linux, else since its start."""
    if sys.platform == "win32":
        return _windows_counters()[0]
    with contextlib.suppress(OSError, ValueError):
        return _bytes_of("/proc/self/status", "VmHWM")
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def used_bytes() -> int:
    """Return the bytes that this process uses now; its peak if the system does not tell."""
    if sys.platform == "win32":
        return _windows_counters()[1]
    with contextlib.suppress(OSError, ValueError):
        return _bytes_of("/proc/self/status", "VmRSS")
    return peak_bytes()


def end_above(limit: int) -> None:
    """End this process as soon as it uses more than `limit` bytes, to protect other processes.

    Linux is also told to kill this process first if memory runs out.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")

    def watch() -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_EVERY):
            if used_bytes() > limit:
                os._exit(TOO_LARGE)

    threading.Thread(target=watch, daemon=True).start()


def group_limits(name: str) -> Iterator[str]:
    """Yield the content of the file `name` of this process's control groups, innermost first (Linux, containers)."""
    for folder in _groups():
        with contextlib.suppress(OSError):
            yield (folder / name).read_text().strip()


def _physical_memory() -> int:
    if sys.platform == "win32":
        return _windows_memory()[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _system_available() -> int:
    if sys.platform == "win32":
        return _windows_memory()[1]
    with contextlib.suppress(OSError, ValueError):
        return _bytes_of("/proc/meminfo", "MemAvailable")
    with contextlib.suppress(OSError, ValueError, IndexError, subprocess.SubprocessError):
        return _mac_available()
    return machine_memory() // 2


def _left_in_groups() -> Iterator[int]:
    """Yield, for every control group with a limit, the limit minus the use without file cache."""
    names = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for folder in _groups():
        for limit, use, cache in names:
            with contextlib.suppress(OSError, ValueError):
                cached = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                used = int((folder / use).read_text()) - int(cached.get(cache, 0))
                yield int((folder / limit).read_text()) - used


def _groups() -> list[Path]:
    """Return the folders of this process's control groups and of all groups above them."""
    root = Path("/sys/fs/cgroup")
    folders = [root, root / "memory", root / "cpu"]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            for kind in kinds.split(","):
                if kind in ("", "memory", "cpu"):
                    own = root / kind / path.lstrip("/")
                    folders = [own, *(parent for parent in own.parents if parent.is_relative_to(root)), *folders]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _bytes_of(file: str, field: str) -> int:
    """Return the value of a line such as `VmHWM:    1024 kB` in a file of /proc."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


def _mac_available() -> int:
    lines = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True, timeout=5).stdout.splitlines()
    page = int(lines[0].split("page size of ")[1].split()[0])
    free = ("Pages free", "Pages inactive", "Pages speculative")
    return sum(page * int(line.split(":")[1].strip(" .")) for line in lines[1:] if line.startswith(free))


def _windows_memory() -> tuple[int, int]:
    """Return the physical memory and the available part of it in bytes."""

    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "available", "a", "b", "c", "d", "e")),
        )

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined,unused-ignore]
    return int(status.total), int(status.available)


def _windows_counters() -> tuple[int, int]:
    """Return the peak and the current working set in bytes."""

    class Counters(ctypes.Structure):
        _fields_ = (
            ("size", ctypes.c_ulong),
            ("faults", ctypes.c_ulong),
            *((name, ctypes.c_size_t) for name in ("peak", "current", "a", "b", "c", "d", "e", "f")),
        )

    counters = Counters(size=ctypes.sizeof(Counters))
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    kernel.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.size)
    return int(counters.peak), int(counters.current)
