"""Checks of the disks: writing speed and space of the run's folder, reading speed of the data."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.filesize import decimal

from nest_ssl.apps.doctor import CheckResult
from nest_ssl.regular_file import open_regular

_BLOCK = 2**22
_MOST_WRITTEN = 2**26
_SECONDS = 1.0  # for each measurement
_SLOW_TO_WRITE = 50e6  # bytes per second: a checkpoint of Large then takes half a minute
_SLOW_TO_READ = 1e6


def check_run_folder(folder: Path, needed: int) -> Iterator[CheckResult]:
    """Check speed and space for `needed` bytes of checkpoints in a folder, which need not exist yet."""
    folder = folder.absolute()
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        speed, free = write_speed(parent), shutil.disk_usage(parent).free
    except OSError as error:
        advice = "Set exp_manager.exp_dir to a folder that you may write to"
        yield CheckResult("run's disk", "problem", f"{parent}: {error.strerror or error}", advice)
        return
    found = f"writes {speed / 1e6:,.0f} MB/s ({parent})"
    if speed < _SLOW_TO_WRITE:
        advice = "Checkpoints will take long: exp_manager.checkpoint_callback_params.async_save=true"
        yield CheckResult("run's disk", "warning", found, advice)
    else:
        yield CheckResult("run's disk", "ok", found)
    found = f"{decimal(free)} free, checkpoints take up to {decimal(needed)}"
    if free < needed:
        advice = "Free some space, set exp_manager.exp_dir, or exp_manager.checkpoint_callback_params.save_top_k"
        yield CheckResult("space", "warning", found, advice)
    else:
        yield CheckResult("space", "ok", found)


def check_data_disk(files: Sequence[str]) -> CheckResult:
    """Measure how fast some audio files of the manifest are read."""
    speed, count, from_disk = read_files(files)
    if not count:
        advice = "nest-ssl data check names them"
        return CheckResult("data's disk", "warning", "none of the files tried could be read", advice)
    cache = "" if from_disk else "; perhaps from the file cache, so the first epoch may be slower"
    found = f"reads {speed / 1e6:,.0f} MB/s ({count} files tried{cache})"
    if speed < _SLOW_TO_READ:
        advice = "Keep the audio on a local SSD, or in tar files (nest-ssl data tar)"
        return CheckResult("data's disk", "warning", found, advice)
    return CheckResult("data's disk", "ok", found)


def write_speed(folder: Path) -> float:
    """Write a temporary file through to the disk; return the bytes per second."""
    block = os.urandom(_BLOCK)  # zeros would be compressed by some disks
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".nest_ssl-doctor-") as file:
        began, written = time.perf_counter(), 0
        while written < _MOST_WRITTEN and time.perf_counter() - began < _SECONDS:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            written += _BLOCK
        return written / max(time.perf_counter() - began, 1e-9)


def read_files(files: Sequence[str]) -> tuple[float, int, bool]:
    """Read whole files; return bytes per second, how many were read, and whether the file cache was dropped before."""
    read, count, from_disk, seconds = 0, 0, hasattr(os, "posix_fadvise"), 0.0
    for name in files:
        with contextlib.suppress(OSError), open_regular(name) as file:
            if from_disk:  # drop the file from the cache, so that it is read from the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while got := len(file.read(_BLOCK)):
                read += got
            seconds += time.perf_counter() - began
            count += 1
        if seconds > _SECONDS:
            break
    return read / max(seconds, 1e-9), count, from_disk
