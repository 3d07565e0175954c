"""The checks of machines that the tests do not run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import soundfile

from nest_ssl.apps.doctor import CheckResult, machine
from nest_ssl.apps.doctor.machine import Facts, Gpu
from nest_ssl.config.machine import Machine
from tests.apps.doctor.machines import made_up

A100 = Gpu("NVIDIA A100", 80 * 10**9, "8.0", bf16=True)
T4 = Gpu("Tesla T4", 16 * 10**9, "7.5", bf16=False)
Check = Callable[[Facts], CheckResult]


@pytest.mark.parametrize(
    ("check", "facts", "state", "says"),
    [
        (machine.check_system, {"system": "Linux"}, "ok", "Linux"),
        (machine.check_system, {"python": (3, 12, 1)}, "ok", "Python 3.12.1"),
        (machine.check_torch, {"torch": "2.13.0+cpu"}, "ok", "for the CPU only"),
        (machine.check_torch, {"torch": "2.13.0", "torch_cuda": "13.0"}, "ok", "for CUDA 13.0"),
        (machine.check_gpu, {"gpus": (A100, A100)}, "ok", "2 x NVIDIA A100, 80.0 GB, capability 8.0, bf16"),
        (machine.check_gpu, {"gpus": (T4,)}, "ok", "fp16"),
        (
            machine.check_gpu,
            {"nvidia_card": "RTX 4090, driver 550"},
            "warning",
            "Install a torch",
        ),
        (machine.check_gpu, {"nvidia_card": "RTX 4090", "torch_cuda": "13.0"}, "warning", "Update the driver"),
        (machine.check_gpu, {"mps": True}, "note", "float64"),
        (machine.check_gpu, {}, "note", "CPU"),
        (machine.check_processor, {}, "ok", "AVX2"),
        (machine.check_processor, {"vector_kernels": "DEFAULT"}, "warning", "Without AVX2"),
        (machine.check_processor, {"vector_kernels": "DEFAULT", "architecture": "arm64"}, "ok", "DEFAULT"),
        (machine.check_cores, {"cores": 8, "usable_cores": 8, "threads": 8}, "ok", "8 threads"),
        (machine.check_cores, {"cores": 64, "usable_cores": 4.0, "threads": 32}, "warning", "OMP_NUM_THREADS=4"),
        (machine.check_cores, {"cores": 8, "usable_cores": 8, "threads": 1}, "note", "OMP_NUM_THREADS=8"),
        (machine.check_load, {"load": 0.1}, "ok", "0.1"),
        (machine.check_load, {"load": 9.0, "usable_cores": 2}, "warning", "too low"),
        (machine.check_load, {"load": None}, "ok", "unknown"),
        (machine.check_memory, {}, "ok", "12.0 GB of it available"),
        (machine.check_memory, {"available": 2 * 10**9}, "warning", "+size=small"),
        (machine.check_shared_memory, {"shared_memory": 8 * 10**9}, "ok", "8.0 GB free in /dev/shm"),
        (machine.check_shared_memory, {"shared_memory": None}, "ok", "none needed"),
        (machine.check_start_method, {"start_method": "fork"}, "ok", "at once"),
        (machine.check_start_method, {"start_method": "spawn"}, "note", '`if __name__ == "__main__":`'),
        (machine.check_open_files, {"open_files": 256}, "warning", "ulimit -n"),
        (machine.check_open_files, {"open_files": -1}, "ok", "no limit"),
        (machine.check_open_files, {"open_files": None}, "ok", "no limit"),
        (machine.check_paths, {"long_paths": False}, "warning", "260 characters"),
        (machine.check_nemo, {}, "note", "nest-ssl align"),
        (machine.check_nemo, {"nemo": "/opt/nemo/bin/python"}, "ok", "/opt/nemo"),
    ],
)
def test_every_machine_is_told_what_concerns_it(check: Check, facts: dict[str, Any], state: str, says: str) -> None:
    finding = check(made_up(**facts))
    assert finding.state == state
    assert says in f"{finding.found} {finding.advice}"


def test_warnings_and_problems_come_with_something_to_do() -> None:
    poor = made_up(
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


def test_this_machine_can_be_described() -> None:
    here = Facts()
    assert 0 < here.usable_cores <= here.cores
    assert 0 < here.available <= here.memory
    assert len(machine.check_machine(here)) > 10
    assert here.machine == Machine.here()
    assert "shared memory" in [finding.name for finding in machine.check_machine(here)]


def test_libsndfile_reads_every_usual_kind_of_file() -> None:
    finding = machine.check_codecs()
    assert finding.state == "ok"
    assert finding.found.startswith("reads wav, flac, ogg, mp3, opus")


@pytest.mark.parametrize(("kind", "state"), [("MP3", "warning"), ("FLAC", "problem")])
def test_files_that_libsndfile_cannot_read_are_named(kind: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: text for name, text in soundfile.available_formats().items() if name != kind}
    monkeypatch.setattr(soundfile, "available_formats", lambda: without)
    finding = machine.check_codecs()
    assert finding.state == state
    assert finding.found.endswith(f"not {kind.lower()}")
    assert "soundfile" in finding.advice
