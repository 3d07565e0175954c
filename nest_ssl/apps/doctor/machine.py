"""Checks of the machine that do not depend on a configuration."""

from __future__ import annotations

import math

import soundfile

from nest_ssl.apps.doctor.check_result import GIGABYTE, CheckResult, gigabytes
from nest_ssl.apps.doctor.machine_facts import Facts

_OLDEST_TORCH = (2, 6)
_LITTLE_MEMORY = 4 * GIGABYTE
_LITTLE_SHARED_MEMORY = GIGABYTE  # Docker gives 64 MB
_FEW_FILES = 1024
_BUSY = 0.75  # share of the cores that other programs use
_WHERE_TORCH = "https://pytorch.org/get-started/locally"
_KINDS = {  # name: (format, subtype) in libsndfile's terms
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
}
_NEEDED = {"wav", "flac"}


def check_machine(facts: Facts) -> list[CheckResult]:
    """Run all checks of facts."""
    checks = (system, torch, gpu, processor, cores, load, memory, shared_memory, start_method, open_files)
    return [check(facts) for check in (*checks, long_paths, nemo)]


def system(facts: Facts) -> CheckResult:
    python = ".".join(map(str, facts.python))
    found = f"{facts.system} {facts.release}, {facts.architecture}, Python {python}"
    if facts.system == "Windows":
        advice = (
            "Everything here runs on Windows. WSL2 is worth trying where loading is slow: processes start faster there"
        )
        return CheckResult("system", "note", found, advice)
    return CheckResult("system", "ok", found)


def torch(facts: Facts) -> CheckResult:
    built_for = "for the CPU only"
    if facts.torch_cuda:
        built_for = f"for CUDA {facts.torch_cuda}"
    elif facts.torch_hip:
        built_for = f"for ROCm {facts.torch_hip}"
    elif facts.system == "Darwin":
        built_for = "for macOS"
    found = f"{facts.torch}, built {built_for}"
    version = tuple(int(part) for part in facts.torch.split("+")[0].split(".")[:2] if part.isdecimal())
    if version < _OLDEST_TORCH:
        return CheckResult("torch", "problem", found, "Install torch 2.6 or newer")
    return CheckResult("torch", "ok", found)


def gpu(facts: Facts) -> CheckResult:
    """Name the GPUs that training can use or, without one, the reason and what to do."""
    if facts.gpus:
        shown = [
            f"{one.name}, {gigabytes(one.memory)}, capability {one.capability}, {'bf16' if one.bf16 else 'fp16'}"
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


def processor(facts: Facts) -> CheckResult:
    found = f"{facts.cpu or 'unknown model'}, torch uses {facts.vector_kernels}"
    if facts.vector_kernels == "DEFAULT" and facts.architecture in ("x86_64", "AMD64"):
        return CheckResult("processor", "warning", found, "Without AVX2 a step takes several times as long")
    return CheckResult("processor", "ok", found)


def cores(facts: Facts) -> CheckResult:
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


def load(facts: Facts) -> CheckResult:
    if facts.load is None:
        return CheckResult("load", "ok", "unknown on this system")
    found = f"{facts.load:.1f} processes want {facts.usable_cores:g} cores"
    if facts.load > _BUSY * facts.usable_cores:
        advice = "Speeds measured below are too low: run it again when nothing else computes"
        return CheckResult("load", "warning", f"busy: {found}", advice)
    return CheckResult("load", "ok", found)


def memory(facts: Facts) -> CheckResult:
    found = f"{gigabytes(facts.memory)}, {gigabytes(facts.available)} of it available now"
    if facts.available < _LITTLE_MEMORY:
        return CheckResult("memory", "warning", found, "Close other programs, or train a small size (+size=small)")
    return CheckResult("memory", "ok", found)


def shared_memory(facts: Facts) -> CheckResult:
    """Report the size of /dev/shm, through which workers pass batches; plan.py checks what a configuration needs."""
    if facts.shared_memory is None:
        return CheckResult("shared memory", "ok", "no /dev/shm here, and none needed")
    found = f"{gigabytes(facts.shared_memory)} free in /dev/shm, for batches of workers"
    if facts.shared_memory < _LITTLE_SHARED_MEMORY:
        advice = "Little for num_workers > 0: docker run --shm-size=8g gives more"
        return CheckResult("shared memory", "note", found, advice)
    return CheckResult("shared memory", "ok", found)


def start_method(facts: Facts) -> CheckResult:
    if facts.start_method == "fork":
        return CheckResult("processes", "ok", "fork: workers start at once and share memory with the run")
    found = f"{facts.start_method}: each worker imports torch again: some seconds at the start"
    advice = (
        'nest-ssl and train.py can do that. A script of your own must start under `if __name__ == "__main__":`; '
        "persistent_workers=true starts workers once instead of in every epoch"
    )
    return CheckResult("processes", "note", found, advice)


def open_files(facts: Facts) -> CheckResult:
    if facts.open_files is None or facts.open_files < 0:
        return CheckResult("open files", "ok", "no limit")
    if facts.open_files < _FEW_FILES:
        return CheckResult(
            "open files", "warning", f"at most {facts.open_files}", "Workers may need more: ulimit -n 4096"
        )
    return CheckResult("open files", "ok", f"at most {facts.open_files:,}")


def long_paths(facts: Facts) -> CheckResult:
    if facts.long_paths:
        return CheckResult("paths", "ok", "of any usual length")
    advice = "Keep exp_manager.exp_dir short (C:/runs), or switch LongPathsEnabled on in Windows. / and \\ both work"
    return CheckResult("paths", "warning", "Windows is set to at most 260 characters", advice)


def nemo(facts: Facts) -> CheckResult:
    if facts.nemo is None:
        advice = "Not needed for training; `nest-ssl align` installs it (6 GB)"
        return CheckResult("nemo", "note", "not installed", advice)
    return CheckResult("nemo", "ok", f"for `nest-ssl align`: {facts.nemo}")


def check_codecs() -> CheckResult:
    """Check which kinds of audio files libsndfile was built to read."""
    formats = soundfile.available_formats()
    missing = [
        kind
        for kind, (form, subtype) in _KINDS.items()
        if form not in formats or subtype not in soundfile.available_subtypes(form)
    ]
    reads = ", ".join(kind for kind in _KINDS if kind not in missing)
    found = f"reads {reads} (libsndfile {soundfile.__libsndfile_version__})"
    if not missing:
        return CheckResult("audio", "ok", found)
    return CheckResult(
        "audio",
        "warning" if _NEEDED.isdisjoint(missing) else "problem",
        f"{found}; not {', '.join(missing)}",
        "Update soundfile (pip install -U soundfile), or convert such files to flac",
    )
