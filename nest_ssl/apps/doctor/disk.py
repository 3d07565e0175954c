"""Checks of the disks: speed of the run's folder and of the data, and free space for the checkpoints."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nest_ssl.apps.doctor.check_result import CheckResult, gigabytes
from nest_ssl.regular_file import open_regular

_BLOCK = 2**22
_MOST_WRITTEN = 2**26
_SECONDS = 1.0  # for each measurement
_SLOW = 50e6  # bytes a second: a checkpoint of Large then takes half a minute


@dataclass(frozen=True)
class Rate:
    """Bytes that were read or written, and the time that it took."""

    bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.per_second / 1e6:,.0f} MB/s"

    @property
    def per_second(self) -> float:
        return self.bytes / max(self.seconds, 1e-9)


def check_space(folder: Path, needed: int) -> CheckResult:
    """Check the free space for the checkpoints of a run in `folder`, which need not exist yet."""
    try:
        free = shutil.disk_usage(existing_parent(folder)).free
    except OSError as error:
        return CheckResult(
            "space", "problem", f"{folder}: {error.strerror}", "Set exp_manager.exp_dir to a folder of yours"
        )
    found = f"{gigabytes(free)} free, checkpoints take up to {gigabytes(needed)} (in {shown(folder)})"
    if free < needed:
        return CheckResult(
            *("space", "warning", found),
            "Free some space, set exp_manager.exp_dir, or exp_manager.checkpoint_callback_params.save_top_k",
        )
    return CheckResult("space", "ok", found)


def check_experiment_disk(folder: Path) -> CheckResult:
    """Measure how fast the run's folder is written and read."""
    parent = existing_parent(folder)
    try:
        written, read = write_and_read(parent)
    except OSError as error:
        return CheckResult(
            *("run's disk", "problem", f"{parent}: {error.strerror or error}"),
            "Set exp_manager.exp_dir to a folder that you may write to",
        )
    found = f"writes {written}, reads {read} ({shown(parent)})"
    if written.per_second < _SLOW:
        return CheckResult(
            *("run's disk", "warning", found),
            "Checkpoints will take long: exp_manager.checkpoint_callback_params.async_save=true",
        )
    return CheckResult("run's disk", "ok", found)


def check_data_disk(files: Sequence[str]) -> CheckResult:
    """Measure how fast some audio files of the manifest are read."""
    rate, count, from_disk = read_files(files)
    if not count:
        return CheckResult(
            "data's disk", "warning", "none of the files tried could be read", "nest-ssl data check names them"
        )
    cache = "" if from_disk else "; perhaps from the file cache, so the first epoch may be slower"
    found = f"reads {rate}, {count / max(rate.seconds, 1e-9):,.0f} files a second ({count} files tried{cache})"
    if rate.per_second < _SLOW / 50:
        return CheckResult(
            "data's disk", "warning", found, "Keep the audio on a local SSD, or in tar files (nest-ssl data tar)"
        )
    return CheckResult("data's disk", "ok", found)


def existing_parent(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def shown(path: Path) -> str:
    """Return the path relative to the working directory if it is inside it, else unchanged."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)


def write_and_read(folder: Path) -> tuple[Rate, Rate]:
    """Write a temporary file through to the disk, read it back, and return both rates."""
    block = os.urandom(_BLOCK)  # zeros would be compressed by some disks
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".nest_ssl-doctor-") as file:
        began, written = time.perf_counter(), 0
        while written < _MOST_WRITTEN and time.perf_counter() - began < _SECONDS:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            written += _BLOCK
        write = Rate(written, time.perf_counter() - began)
        _drop_from_cache(file.fileno())
        file.seek(0)
        began, read = time.perf_counter(), 0
        while (got := len(file.read(_BLOCK))) and time.perf_counter() - began < _SECONDS:
            read += got
        return write, Rate(read, time.perf_counter() - began)


def read_files(files: Sequence[str]) -> tuple[Rate, int, bool]:
    """Read whole files; return the rate, how many were read, and whether the file cache was dropped before."""
    read, count, from_disk = 0, 0, True
    seconds = 0.0
    for name in files:
        with contextlib.suppress(OSError), open_regular(name) as file:
            from_disk = _drop_from_cache(file.fileno()) and from_disk
            began = time.perf_counter()
            while got := len(file.read(_BLOCK)):
                read += got
            seconds += time.perf_counter() - began
            count += 1
        if seconds > _SECONDS:
            break
    return Rate(read, seconds), count, from_disk


def _drop_from_cache(descriptor: int) -> bool:
    """Ask the system to drop a file from its cache, so that it is read from the disk; return whether that worked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return True
    return False
