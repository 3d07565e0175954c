"""Facts about this machine, and checks of them that do not depend on a configuration.

Facts are plain values, so that tests can describe machines that we do not have.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import soundfile
import torch
from rich.filesize import decimal

from nest_ssl.apps.doctor import CheckResult
from nest_ssl.config.machine import Machine, processor
from nest_ssl.environments import SetupError, installed_nemo
from nest_ssl.memory import available_memory, group_limits, machine_memory

_LITTLE_MEMORY = 4 * 10**9
_FEW_FILES = 1024
_BUSY = 0.75  # share of the cores that other programs use
_WHERE_TORCH = "https://pytorch.org/get-started/locally"
_AUDIO = {  # name: (format, subtype) in libsndfile's terms
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
}
_NEEDED = {"wav", "flac"}


@dataclass(frozen=True)
class Gpu:
    """A GPU that PyTorch can use."""

    name: str
    memory: int  # bytes
    capability: str  # CUDA compute capability, such as 8.0
    bf16: bool


def _gpus() -> tuple[Gpu, ...]:
    found = [torch.cuda.get_device_properties(index) for index in range(Machine.here().cuda_devices)]
    rocm = torch.version.hip is not None
    return tuple(Gpu(one.name, one.total_memory, f"{one.major}.{one.minor}", rocm or one.major >= 8) for one in found)


def _nvidia_card() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    question = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(question, capture_output=True, text=True, timeout=10)
        if done.returncode == 0 and done.stdout.strip():
            return ", driver ".join(part.strip() for part in done.stdout.splitlines()[0].split(","))
    return None


def _cores() -> int:
    return os.cpu_count() or 1


def _usable_cores() -> float:
    found: list[float] = [_cores()]
    if hasattr(os, "sched_getaffinity"):
        found.append(len(os.sched_getaffinity(0)))
    quotas = [(quota, period) for quota, _, period in (limit.partition(" ") for limit in group_limits("cpu.max"))]
    quotas += zip(group_limits("cpu.cfs_quota_us"), group_limits("cpu.cfs_period_us"), strict=False)
    found += [int(quota) / int(period) for quota, period in quotas if quota.isdecimal() and period.isdecimal()]
    return min(found)


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _shared_memory() -> int | None:
    with contextlib.suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return None


def _open_files() -> int | None:
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _long_paths() -> bool:
    if sys.platform != "win32":
        return True
    import winreg

    where = r"SYSTEM\CurrentControlSet\Control\FileSystem"
    with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, where) as key:
        return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
    return False


def _nemo() -> str | None:
    with contextlib.suppress(SetupError):
        found = installed_nemo()
        return str(found) if found else None
    return None


def _fact(look_up: Callable[[], Any]) -> Any:
    return field(default_factory=look_up)


@dataclass(frozen=True)
class Facts:
    """Facts about a machine and its Python installation; `Facts()` looks them up here (about one second)."""

    system: str = _fact(platform.system)  # Linux, Windows, Darwin
    release: str = _fact(platform.release)
    architecture: str = _fact(platform.machine)
    python: tuple[int, int, int] = sys.version_info[:3]
    torch_cuda: str | None = torch.version.cuda  # CUDA version of the torch build
    torch_hip: str | None = torch.version.hip
    gpus: tuple[Gpu, ...] = _fact(_gpus)
    nvidia_card: str | None = _fact(_nvidia_card)  # as the driver reports it, even if PyTorch cannot use it
    mps: bool = _fact(torch.backends.mps.is_available)
    cpu: str = _fact(processor)
    vector_kernels: str = _fact(torch.backends.cpu.get_cpu_capability)  # instruction set that torch's CPU kernels use
    cpu_bf16: bool = _fact(lambda: Machine.here().cpu_bf16)
    cores: int = _fact(_cores)
    usable_cores: float = _fact(_usable_cores)  # limited by CPU affinity and the container
    threads: int = _fact(torch.get_num_threads)  # of torch
    memory: int = _fact(machine_memory)  # bytes
    available: int = _fact(available_memory)  # bytes
    shared_memory: int | None = _fact(_shared_memory)  # free bytes in /dev/shm; None where workers do not need it
    start_method: str = _fact(multiprocessing.get_start_method)  # of worker processes
    open_files: int | None = _fact(_open_files)  # the limit for one process
    load: float | None = _fact(_load)  # average number of runnable processes in the last minute
    long_paths: bool = _fact(_long_paths)  # paths may have more than 260 characters
    nemo: str | None = _fact(_nemo)  # Python interpreter with NeMo
    torch: str = str(torch.__version__)  # the last field, because it hides the library from the others

    @property
    def machine(self) -> Machine:
        """The part of the facts that the adjustment of configurations depends on."""
        windows = self.system == "Windows"
        gpu_bf16 = any(gpu.bf16 for gpu in self.gpus)
        return Machine(len(self.gpus), self.mps, windows, gpu_bf16, self.cpu_bf16)


def check_machine(facts: Facts) -> list[CheckResult]:
    """Run all checks of facts."""
    device = (check_system, check_torch, check_gpu, check_processor, check_cores, check_load)
    limits = (check_memory, check_shared_memory, check_start_method, check_open_files, check_paths, check_nemo)
    return [check(facts) for check in (*device, *limits)]


def check_system(facts: Facts) -> CheckResult:
    python = ".".join(map(str, facts.python))
    return CheckResult("system", "ok", f"{facts.system} {facts.release}, {facts.architecture}, Python {python}")


def check_torch(facts: Facts) -> CheckResult:
    built_for = "for the CPU only"
    if facts.torch_cuda:
        built_for = f"for CUDA {facts.torch_cuda}"
    elif facts.torch_hip:
        built_for = f"for ROCm {facts.torch_hip}"
    elif facts.system == "Darwin":
        built_for = "for macOS"
    return CheckResult("torch", "ok", f"{facts.torch}, built {built_for}")


def check_gpu(facts: Facts) -> CheckResult:
    """Name the GPUs that training can use or, without one, the reason and what to do."""
    if facts.gpus:
        shown = [
            f"{one.name}, {decimal(one.memory)}, capability {one.capability}, {'bf16' if one.bf16 else 'fp16'}"
            for one in facts.gpus
        ]
        counts = [f"{shown.count(one)} x {one}" for one in dict.fromkeys(shown)]
        driver = f" (driver: {facts.nvidia_card})" if facts.nvidia_card else ""
        return CheckResult("gpu", "ok", "; ".join(counts) + driver)
    if facts.nvidia_card and facts.torch_cuda is None:
        found = f"{facts.nvidia_card}; but this torch is built for the CPU only"
        return CheckResult("gpu", "warning", found, f"Install a torch that is built for CUDA: see {_WHERE_TORCH}")
    if facts.nvidia_card:
        found = f"{facts.nvidia_card}; but torch, built for CUDA {facts.torch_cuda}, cannot use it"
        advice = "Update the driver, or look whether CUDA_VISIBLE_DEVICES hides the card"
        return CheckResult("gpu", "warning", found, advice)
    if facts.mps:
        found = "Apple's GPU (MPS), which training does not use: it has no float64"
        return CheckResult("gpu", "note", found, "Training runs on the CPU; nothing to do")
    return CheckResult("gpu", "note", "none", "Training runs on the CPU: fine to try things, slow for a real run")


def check_processor(facts: Facts) -> CheckResult:
    found = f"{facts.cpu or 'unknown model'}, torch uses {facts.vector_kernels}"
    slow = facts.vector_kernels == "DEFAULT" and facts.architecture in ("x86_64", "AMD64")
    return CheckResult.warn_if(slow, "processor", found, "Without AVX2 a step takes several times as long")


def check_cores(facts: Facts) -> CheckResult:
    found = str(facts.cores)
    if facts.usable_cores < facts.cores:
        found = f"{facts.usable_cores:g} of {facts.cores} usable here (container or affinity)"
    found += f", torch computes with {facts.threads} {'thread' if facts.threads == 1 else 'threads'}"
    usable = max(1, math.floor(facts.usable_cores))
    if facts.threads > math.ceil(facts.usable_cores):
        return CheckResult("cores", "warning", found, f"Threads wait for each other: set OMP_NUM_THREADS={usable}")
    if not facts.gpus and facts.threads < usable:
        return CheckResult("cores", "note", found, f"OMP_NUM_THREADS={usable} uses all of them")
    return CheckResult("cores", "ok", found)


def check_load(facts: Facts) -> CheckResult:
    if facts.load is None:
        return CheckResult("load", "ok", "unknown on this system")
    found = f"{facts.load:.1f} processes want {facts.usable_cores:g} cores"
    advice = "Speeds measured below are too low: run it again when nothing else computes"
    return CheckResult.warn_if(facts.load > _BUSY * facts.usable_cores, "load", found, advice)


def check_memory(facts: Facts) -> CheckResult:
    found = f"{decimal(facts.memory)}, {decimal(facts.available)} of it available now"
    advice = "Close other programs, or train a small size (+size=small)"
    return CheckResult.warn_if(facts.available < _LITTLE_MEMORY, "memory", found, advice)


def check_shared_memory(facts: Facts) -> CheckResult:
    """Report the size of /dev/shm, through which workers pass batches; plan.py checks what a configuration needs."""
    if facts.shared_memory is None:
        return CheckResult("shared memory", "ok", "no /dev/shm here, and none needed")
    return CheckResult(
        "shared memory", "ok", f"{decimal(facts.shared_memory)} free in /dev/shm, for batches of workers"
    )


def check_start_method(facts: Facts) -> CheckResult:
    if facts.start_method == "fork":
        return CheckResult("processes", "ok", "fork: workers start at once and share memory with the run")
    found = f"{facts.start_method}: each worker imports torch again: some seconds at the start"
    advice = (
        'nest-ssl and train.py can do that. A script of your own must start under `if __name__ == "__main__":`; '
        "persistent_workers=true starts workers once instead of in every epoch"
    )
    return CheckResult("processes", "note", found, advice)


def check_open_files(facts: Facts) -> CheckResult:
    if facts.open_files is None or facts.open_files < 0:
        return CheckResult("open files", "ok", "no limit")
    few, advice = facts.open_files < _FEW_FILES, "Workers may need more: ulimit -n 4096"
    return CheckResult.warn_if(few, "open files", f"at most {facts.open_files:,}", advice)


def check_paths(facts: Facts) -> CheckResult:
    if facts.long_paths:
        return CheckResult("paths", "ok", "of any usual length")
    advice = "Keep exp_manager.exp_dir short (C:/runs), or switch LongPathsEnabled on in Windows. / and \\ both work"
    return CheckResult("paths", "warning", "Windows is set to at most 260 characters", advice)


def check_nemo(facts: Facts) -> CheckResult:
    if facts.nemo is None:
        advice = "Not needed for training; `nest-ssl align` installs it (6 GB)"
        return CheckResult("nemo", "note", "not installed", advice)
    return CheckResult("nemo", "ok", f"for `nest-ssl align`: {facts.nemo}")


def check_codecs() -> CheckResult:
    """Check which kinds of audio files libsndfile was built to read."""
    formats = soundfile.available_formats()
    missing = [
        name
        for name, (form, subtype) in _AUDIO.items()
        if form not in formats or subtype not in soundfile.available_subtypes(form)
    ]
    found = f"reads {', '.join(name for name in _AUDIO if name not in missing)}"
    found += f" (libsndfile {soundfile.__libsndfile_version__})"
    if not missing:
        return CheckResult("audio", "ok", found)
    return CheckResult(
        "audio",
        "warning" if _NEEDED.isdisjoint(missing) else "problem",
        f"{found}; not {', '.join(missing)}",
        "Update soundfile (pip install -U soundfile), or convert such files to flac",
    )
