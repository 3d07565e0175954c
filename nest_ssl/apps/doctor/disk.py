"""Checks of the disks: writing speed and space of the run's folder, reading speed of the data."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nest_ssl.apps.doctor.check_result import CheckResult, gigabytes
from nest_ssl.regular_file import open_regular

_BLOCK = 2**22
_MOST_WRITTEN = 2**26
_SECONDS = 1.0  # for each measurement
_SLOW_TO_WRITE = 50e6  # bytes per second: a checkpoint of Large then takes half a minute
_SLOW_TO_READ = 1e6


def check_space(folder: Path, needed: int) -> CheckResult:
    """Check the free space for the checkpoints of a run in `folder`, which need not exist yet."""
    try:
        free = shutil.disk_usage(existing_parent(folder)).free
    except OSError as error:
        advice = "Set exp_manager.exp_dir to a folder of yours"
        return CheckResult("space", "problem", f"{folder}: {error.strerror}", advice)
    found = f"{gigabytes(free)} free, checkpoints take up to {gigabytes(needed)} (in {shown(folder)})"
    if free < needed:
        advice = "Free some space, set exp_manager.exp_dir, or exp_manager.checkpoint_callback_params.save_top_k"
        return CheckResult("space", "warning", found, advice)
    return CheckResult("space", "ok", found)


def check_experiment_disk(folder: Path) -> CheckResult:
    """Measure how fast the run's folder is written."""
    parent = existing_parent(folder)
    try:
        speed = write_speed(parent)
    except OSError as error:
        advice = "Set exp_manager.exp_dir to a folder that you may write to"
        return CheckResult("run's disk", "problem", f"{parent}: {error.strerror or error}", advice)
    found = f"writes {speed / 1e6:,.0f} MB/s ({shown(parent)})"
    if speed < _SLOW_TO_WRITE:
        advice = "Checkpoints will take long: exp_manager.checkpoint_callback_params.async_save=true"
        return CheckResult("run's disk", "warning", found, advice)
    return CheckResult("run's disk", "ok", found)


def check_data_disk(files: Sequence[str]) -> CheckResult:
    """Measure how fast some audio files of the manifest are read."""
    speed, count, from_disk = read_files(files)
    if not count:
        return CheckResult(
            "data's disk", "warning", "none of the files tried could be read", "nest-ssl data check names them"
        )
    cache = "" if from_disk else "; perhaps from the file cache, so the first epoch may be slower"
    found = f"reads {speed / 1e6:,.0f} MB/s ({count} files tried{cache})"
    if speed < _SLOW_TO_READ:
        advice = "Keep the audio on a local SSD, or in tar files (nest-ssl data tar)"
        return CheckResult("data's disk", "warning", found, advice)
    return CheckResult("data's disk", "ok", found)


def existing_parent(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def shown(path: Path) -> str:
    """Return the path relative to the working directory if it is inside it, else unchanged."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)


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
    read, count, from_disk, seconds = 0, 0, True, 0.0
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
    return read / max(seconds, 1e-9), count, from_disk


def _drop_from_cache(descriptor: int) -> bool:
    """Ask the system to drop a file from its cache, so that it is read from the disk; return whether that worked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return True
    return False
