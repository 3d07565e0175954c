"""Facts about this machine as plain values, so that tests can describe machines that we do not have."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

import torch

from nest_ssl.config.machine import Machine, processor
from nest_ssl.environments import SetupError, installed_nemo
from nest_ssl.memory import available_memory, group_limits, machine_memory


@dataclass(frozen=True)
class Gpu:
    """A GPU that PyTorch can use."""

    name: str
    memory: int  # bytes
    capability: str  # CUDA compute capability, such as 8.0
    bf16: bool


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a machine and its Python installation."""

    system: str  # Linux, Windows, Darwin
    release: str
    architecture: str
    python: tuple[int, int, int]
    torch: str
    torch_cuda: str | None  # CUDA version of the torch build
    torch_hip: str | None
    gpus: tuple[Gpu, ...]
    nvidia_card: str | None  # as the driver reports it, even if PyTorch cannot use it
    mps: bool
    cpu: str
    vector_kernels: str  # instruction set that torch's CPU kernels use
    bf16: bool  # the training device has bf16 matrix multiplication
    cores: int
    usable_cores: float  # limited by CPU affinity and the container
    threads: int  # of torch
    memory: int  # bytes
    available: int  # bytes
    shared_memory: int | None  # free bytes in /dev/shm; None where workers do not need it
    start_method: str  # of worker processes
    open_files: int | None  # the limit for one process
    load: float | None  # average number of runnable processes in the last minute
    long_paths: bool  # paths may have more than 260 characters
    nemo: str | None  # Python interpreter with NeMo

    @property
    def machine(self) -> Machine:
        """The part of the facts that the adjustment of configurations depends on."""
        windows = self.system == "Windows"
        return Machine(cuda_devices=len(self.gpus), mps=self.mps, windows=windows, bf16=self.bf16)

    @classmethod
    def here(cls) -> Facts:
        """Collect the facts about this machine (about one second)."""
        machine = Machine.here()
        cores = os.cpu_count() or 1
        return cls(
            system=platform.system(),
            release=platform.release(),
            architecture=platform.machine(),
            python=sys.version_info[:3],
            torch=torch.__version__,
            torch_cuda=torch.version.cuda,
            torch_hip=torch.version.hip,
            gpus=tuple(_gpu(index) for index in range(machine.cuda_devices)),
            nvidia_card=_nvidia_card(),
            mps=machine.mps,
            cpu=processor(),
            vector_kernels=torch.backends.cpu.get_cpu_capability(),
            bf16=machine.bf16,
            cores=cores,
            usable_cores=_usable_cores(cores),
            threads=torch.get_num_threads(),
            memory=machine_memory(),
            available=available_memory(),
            shared_memory=_shared_memory(),
            start_method=multiprocessing.get_start_method(),
            open_files=_open_files(),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            long_paths=_long_paths(),
            nemo=_nemo(),
        )


def _gpu(index: int) -> Gpu:
    found = torch.cuda.get_device_properties(index)
    bf16 = found.major >= 8 or torch.version.hip is not None
    return Gpu(found.name, found.total_memory, f"{found.major}.{found.minor}", bf16)


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


def _usable_cores(cores: int) -> float:
    found: list[float] = [cores]
    if hasattr(os, "sched_getaffinity"):
        found.append(len(os.sched_getaffinity(0)))
    quotas = [(quota, period) for quota, _, period in (limit.partition(" ") for limit in group_limits("cpu.max"))]
    quotas += zip(group_limits("cpu.cfs_quota_us"), group_limits("cpu.cfs_period_us"), strict=False)
    found += [int(quota) / int(period) for quota, period in quotas if quota.isdecimal() and period.isdecimal()]
    return min(found)


def _shared_memory() -> int | None:
    """Return the free bytes in /dev/shm, through which workers pass batches on Linux."""
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
