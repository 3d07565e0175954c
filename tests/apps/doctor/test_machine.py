"""The checks of machines that the tests do not run on."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nest_ssl.apps.doctor import machine
from nest_ssl.apps.doctor.check_result import CheckResult, gigabytes, would_stop
from nest_ssl.apps.doctor.machine_facts import EXTRAS, Facts, Gpu
from tests.apps.doctor.machines import INSTALLED, made_up

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
A100 = Gpu("NVIDIA A100", 80 * 10**9, "8.0", bf16=True)
T4 = Gpu("Tesla T4", 16 * 10**9, "7.5", bf16=False)
Check = Callable[[Facts], CheckResult]


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
        (machine.shared_memory, {"shared_memory": 8 * 10**9}, "ok", "8 GB free in /dev/shm"),
        (machine.shared_memory, {"shared_memory": 64 * 10**6}, "note", "--shm-size"),
        (machine.shared_memory, {"shared_memory": None}, "ok", "none needed"),
        (machine.start_method, {"start_method": "fork"}, "ok", "at once"),
        (machine.start_method, {"start_method": "spawn"}, "note", '`if __name__ == "__main__":`'),
        (machine.open_files, {"open_files": 256}, "warning", "ulimit -n"),
        (machine.open_files, {"open_files": -1}, "ok", "no limit"),
        (machine.open_files, {"open_files": None}, "ok", "no limit"),
        (machine.long_paths, {"long_paths": False}, "warning", "260 characters"),
        (machine.packages, {"packages": {**INSTALLED, "lhotse": None}}, "note", "lhotse for model.train_ds.use_lhotse"),
        (machine.packages, {"packages": {**INSTALLED, "onnxruntime": None}}, "note", ": export for nest-ssl export"),
        (machine.packages, {}, "ok", "wandb 1.0"),
        (machine.nemo, {}, "note", "nest-ssl align"),
        (machine.nemo, {"nemo": "/opt/nemo/bin/python"}, "ok", "/opt/nemo"),
    ],
)
def test_every_machine_is_told_what_concerns_it(check: Check, facts: dict[str, Any], state: str, says: str) -> None:
    finding = check(made_up(**facts))
    assert finding.state == state
    assert says in f"{finding.found} {finding.advice}"


def test_warnings_and_problems_come_with_something_to_do() -> None:
    poor = made_up(
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
    assert not would_stop([CheckResult("a", "warning", "")])
    assert would_stop([CheckResult("a", "ok", ""), CheckResult("b", "problem", "")])


def test_this_machine_can_be_described() -> None:
    here = Facts.here()
    assert 0 < here.usable_cores <= here.cores
    assert 0 < here.available <= here.memory
    assert len(machine.check_machine(here)) > 10
    assert here.machine.cuda_devices == len(here.gpus)
    assert "shared memory" in [finding.name for finding in machine.check_machine(here)]


def test_a_fact_that_was_not_looked_up_is_an_error() -> None:
    with pytest.raises(TypeError, match="vector_kernels"):
        Facts(system="Linux")  # type: ignore[call-arg]


def test_the_newest_python_is_the_newest_that_the_package_claims() -> None:
    claimed = re.findall(r'"Programming Language :: Python :: (\d+)\.(\d+)"', PROJECT.read_text())
    versions = sorted((int(major), int(minor)) for major, minor in claimed)
    assert (versions[0], versions[-1]) == (machine.OLDEST_PYTHON, machine.NEWEST_TESTED_PYTHON)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is newer")
def test_every_extra_that_adds_to_a_run_is_looked_for() -> None:
    import tomllib

    offered = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    for_runs = {name: wanted for name, wanted in offered.items() if wanted and name not in ("dev", "docs")}
    assert {name: set(extra.packages) for name, extra in EXTRAS.items()} == {
        name: {package.partition(">=")[0] for package in wanted} for name, wanted in for_runs.items()
    }


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 MB"), (64e6, "64 MB"), (2.43e9, "2.43 GB"), (19e9, "19 GB"), (99.6e9, "100 GB"), (1.234e12, "1,234 GB")],
)
def test_sizes_have_three_digits_and_no_exponent(count: float, text: str) -> None:
    assert gigabytes(count) == text
