"""Machines that the tests do not run on, described by facts."""

from __future__ import annotations

import dataclasses
from typing import Any

from nest_ssl.apps.doctor.machine import Facts

_PLAIN = Facts(
    system="Linux",
    release="6.1",
    architecture="x86_64",
    python=(3, 12, 0),
    torch="2.13.0",
    torch_cuda=None,
    torch_hip=None,
    gpus=(),
    nvidia_card=None,
    mps=False,
    cpu="some",
    vector_kernels="AVX2",
    cpu_bf16=False,
    cores=1,
    usable_cores=1,
    threads=1,
    memory=16 * 10**9,
    available=12 * 10**9,
    shared_memory=None,
    start_method="fork",
    open_files=None,
    load=None,
    long_paths=True,
    nemo=None,
)


def made_up(**facts: Any) -> Facts:
    """Return the facts of a plain machine without a GPU, with some replaced."""
    return dataclasses.replace(_PLAIN, **facts)
