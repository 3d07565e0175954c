"""Machines that nobody here has, described by data, and what is said of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from nest_ssl.doctor import machine
from nest_ssl.doctor.facts import Facts, Gpu
from nest_ssl.doctor.finding import Finding, would_stop

A100 = Gpu("NVIDIA A100", 80 * 10**9, "8.0", bf16=True)
T4 = Gpu("Tesla T4", 16 * 10**9, "7.5", bf16=False)
Check = Callable[[Facts], Finding]


@pytest.mark.parametrize(
    ("check", "facts", "state", "says"),
    [
        (machine.system, {"system": "Linux"}, "ok", "Linux"),
        (machine.system, {"system": "Windows"}, "note", "WSL2"),
        (machine.python, {"python": (3, 9, 1)}, "problem", "3.10 or newer"),
        (machine.python, {"python": (3, 12, 1)}, "ok", "3.12.1"),
        (machine.python, {"python": (3, 99, 0)}, "note", "Newer than tested"),
        (machine.torch, {"torch": "2.13.0+cpu"}, "ok", "for the CPU only"),
        (machine.torch, {"torch": "2.13.0", "torch_cuda": "13.0"}, "ok", "for CUDA 13.0"),
        (machine.torch, {"torch": "2.4.1"}, "problem", "2.6 or newer"),
        (machine.gpu, {"gpus": (A100, A100)}, "ok", "2 x NVIDIA A100, 80 GB, capability 8.0, bf16"),
        (machine.gpu, {"gpus": (T4,)}, "ok", "fp16"),
        (machine.gpu, {"nvidia_card": "RTX 4090, driver 550"}, "warning", "Install a torch that is built for CUDA"),
        (machine.gpu, {"nvidia_card": "RTX 4090", "torch_cuda": "13.0"}, "warning", "Update the driver"),
        (machine.gpu, {"mps": True}, "note", "float64"),
        (machine.gpu, {}, "note", "CPU"),
        (machine.processor, {"cpu_features": ("AVX2",)}, "ok", "AVX2"),
        (machine.processor, {"vector_kernels": "DEFAULT"}, "warning", "Without AVX2"),
        (machine.processor, {"vector_kernels": "DEFAULT", "architecture": "arm64"}, "ok", "DEFAULT"),
        (machine.cores, {"cores": 8, "usable_cores": 8, "threads": 8}, "ok", "8 threads"),
        (machine.cores, {"cores": 64, "usable_cores": 4.0, "threads": 32}, "warning", "OMP_NUM_THREADS=4"),
        (machine.cores, {"cores": 8, "usable_cores": 8, "threads": 1}, "note", "OMP_NUM_THREADS=8"),
        (machine.load, {"load": 0.1}, "ok", "0.1"),
        (machine.load, {"load": 9.0, "usable_cores": 2}, "warning", "too low"),
        (machine.load, {"load": None}, "ok", "unknown"),
        (machine.memory, {}, "ok", "12 GB of it available"),
        (machine.memory, {"available": 2 * 10**9}, "warning", "+size=small"),
        (machine.start_method, {"start_method": "fork"}, "ok", "at once"),
        (machine.start_method, {"start_method": "spawn"}, "note", '`if __name__ == "__main__":`'),
        (machine.open_files, {"open_files": 256}, "warning", "ulimit -n"),
        (machine.open_files, {"open_files": -1}, "ok", "no limit"),
        (machine.open_files, {"open_files": None}, "ok", "no limit"),
        (machine.long_paths, {"long_paths": False}, "warning", "260 characters"),
        (machine.packages, {"packages": {"lhotse": None, "wandb": "1.0"}}, "note", "nest_ssl[lhotse]"),
        (machine.packages, {"packages": {"wandb": "1.0"}}, "ok", "wandb 1.0"),
        (machine.nemo, {}, "note", "nest-ssl align"),
        (machine.nemo, {"nemo": "/opt/nemo/bin/python"}, "ok", "/opt/nemo"),
    ],
)
def test_every_machine_is_told_what_concerns_it(check: Check, facts: dict[str, Any], state: str, says: str) -> None:
    finding = check(dataclasses.replace(Facts(), **facts))
    assert finding.state == state
    assert says in f"{finding.found} {finding.advice}"


def test_warnings_and_problems_come_with_something_to_do() -> None:
    poor = Facts(
        python=(3, 8, 0),
        torch="1.0",
        vector_kernels="DEFAULT",
        threads=99,
        load=99.0,
        available=0,
        open_files=1,
        long_paths=False,
        nvidia_card="some",
    )
    for finding in machine.check_machine(poor):
        assert finding.advice or finding.state in ("ok", "note"), finding


def test_only_problems_stop() -> None:
    assert not would_stop([Finding("a", "warning", "")])
    assert would_stop([Finding("a", "ok", ""), Finding("b", "problem", "")])


def test_this_machine_can_be_described() -> None:
    here = Facts.here()
    assert 0 < here.usable_cores <= here.cores
    assert 0 < here.available <= here.memory
    assert len(machine.check_machine(here)) > 10
    assert here.machine.cuda_devices == len(here.gpus)
