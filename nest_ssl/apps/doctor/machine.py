"""Checks of the machine that do not depend on a configuration; each returns a finding."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import soundfile

from nest_ssl.apps.doctor.check_result import GIGABYTE, CheckResult, gigabytes
from nest_ssl.apps.doctor.machine_facts import EXTRAS, Facts
from nest_ssl.data.audio import AudioSegment
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.errors import AudioError

OLDEST_PYTHON, NEWEST_TESTED_PYTHON = (3, 10), (3, 13)
_OLDEST_TORCH = (2, 6)
_LITTLE_MEMORY = 4 * GIGABYTE
_LITTLE_SHARED_MEMORY = GIGABYTE  # Docker gives 64 MB
_FEW_FILES = 1024
_BUSY = 0.75  # share of the cores that other programs use
_WHERE_TORCH = "https://pytorch.org/get-started/locally"
_STARTS = {
    "fork": "workers start at once and share memory with the run",
    "forkserver": "each worker imports torch again: some seconds at the start",
    "spawn": "each worker imports torch again: some seconds at the start",
}
KINDS = {  # name: (suffix, format, subtype) in libsndfile's terms
    "wav": ("wav", "WAV", "PCM_16"),
    "flac": ("flac", "FLAC", "PCM_16"),
    "ogg": ("ogg", "OGG", "VORBIS"),
    "mp3": ("mp3", "MP3", "MPEG_LAYER_III"),
    "opus": ("opus", "OGG", "OPUS"),
}
_NEEDED = ("wav", "flac")


def check_machine(facts: Facts) -> list[CheckResult]:
    """Run all checks of facts."""
    checks = (
        *(system, python, torch, gpu, processor, cores, load, memory, shared_memory, start_method),
        *(open_files, long_paths, packages, nemo),
    )
    return [check(facts) for check in checks]


def system(facts: Facts) -> CheckResult:
    found = f"{facts.system} {facts.release}, {facts.architecture}"
    if facts.system == "Windows":
        return CheckResult(
            *("system", "note", found),
            "Everything here runs on Windows. WSL2 is worth trying where loading is slow: processes start faster there",
        )
    return CheckResult("system", "ok", found)


def python(facts: Facts) -> CheckResult:
    found = ".".join(map(str, facts.python))
    if facts.python[:2] < OLDEST_PYTHON:
        return CheckResult("python", "problem", found, "Install Python 3.10 or newer")
    if facts.python[:2] > NEWEST_TESTED_PYTHON:
        newest = ".".join(map(str, NEWEST_TESTED_PYTHON))
        return CheckResult("python", "note", found, f"Newer than tested here; if a package is missing, take {newest}")
    return CheckResult("python", "ok", found)


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
        return CheckResult(
            *("gpu", "warning", f"{facts.nvidia_card}; but this torch is built for the CPU only"),
            f"Install a torch that is built for CUDA: {_WHERE_TORCH} says which command",
        )
    if facts.nvidia_card:
        return CheckResult(
            *("gpu", "warning", f"{facts.nvidia_card}; but torch, built for CUDA {facts.torch_cuda}, cannot use it"),
            "Update the driver, or look whether CUDA_VISIBLE_DEVICES hides the card",
        )
    if facts.mps:
        return CheckResult(
            *("gpu", "note", "Apple's GPU (MPS), which training does not use: it has no float64"),
            "Training runs on the CPU; nothing to do",
        )
    return CheckResult("gpu", "note", "none", "Training runs on the CPU: fine to try things, slow for a real run")


def processor(facts: Facts) -> CheckResult:
    features = ", ".join(facts.cpu_features) or "instruction sets unknown"
    found = f"{facts.cpu or 'unknown model'}: {features}; torch uses {facts.vector_kernels}"
    if facts.vector_kernels == "DEFAULT" and facts.architecture in ("x86_64", "AMD64"):
        return CheckResult("processor", "warning", found, "Without AVX2 a step takes several times as long")
    return CheckResult("processor", "ok", found)


def cores(facts: Facts) -> CheckResult:
    found = f"{facts.cores}, torch computes with {facts.threads} {'thread' if facts.threads == 1 else 'threads'}"
    if facts.usable_cores < facts.cores:
        found = (
            f"{facts.usable_cores:g} of {facts.cores} usable here (container or affinity), {found.partition(', ')[2]}"
        )
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
        return CheckResult(
            *("load", "warning", f"busy: {found}"),
            "Speeds measured below are too low: run it again when nothing else computes",
        )
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
        return CheckResult(
            "shared memory", "note", found, "Little for num_workers > 0: docker run --shm-size=8g gives more"
        )
    return CheckResult("shared memory", "ok", found)


def start_method(facts: Facts) -> CheckResult:
    found = f"{facts.start_method}: {_STARTS.get(facts.start_method, 'unknown to this check')}"
    if facts.start_method == "fork":
        return CheckResult("processes", "ok", found)
    return CheckResult(
        *("processes", "note", found),
        'nest-ssl and train.py can do that. A script of your own must start under `if __name__ == "__main__":`; '
        "persistent_workers=true starts workers once instead of in every epoch",
    )


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
    return CheckResult(
        *("paths", "warning", "Windows is set to at most 260 characters"),
        "Keep exp_manager.exp_dir short (C:/runs), or switch LongPathsEnabled on in Windows. / and \\ both work",
    )


def packages(facts: Facts) -> CheckResult:
    there = [f"{name} {version}" for name, version in facts.packages.items() if version]
    missing = [name for name, version in facts.packages.items() if not version]
    found = ", ".join([*there, *(f"no {name}" for name in missing)])
    if not missing:
        return CheckResult("extras", "ok", found)
    wanted = [
        f"{name} for {extra.needed_by}" for name, extra in EXTRAS.items() if not set(missing).isdisjoint(extra.packages)
    ]
    return CheckResult("extras", "note", found, f'As needed, pip install "nest_ssl[...]": {", ".join(wanted)}')


def nemo(facts: Facts) -> CheckResult:
    if facts.nemo is None:
        return CheckResult(
            "nemo", "note", "not installed", "Not needed for training; `nest-ssl align` installs it (6 GB)"
        )
    return CheckResult("nemo", "ok", f"for `nest-ssl align`: {facts.nemo}")


def check_codecs() -> CheckResult:
    """Check which kinds of audio files can be read."""
    found = decodable()
    missing = [kind for kind in KINDS if kind not in found]
    reads = f"reads {', '.join(found)} (libsndfile {soundfile.__libsndfile_version__})"
    if not missing:
        return CheckResult("audio", "ok", reads)
    state = "problem" if any(kind in missing for kind in _NEEDED) else "warning"
    return CheckResult(
        *("audio", state, f"{reads}; not {', '.join(missing)}"),  # type: ignore[arg-type]
        "Update soundfile (pip install -U soundfile), or convert such files to flac",
    )


def decodable(kinds: dict[str, tuple[str, str, str]] | None = None) -> list[str]:
    """Write half a second of sound in each kind; return the kinds that decode to nearly the same sound."""
    samples = 0.5 * np.sin(2 * np.pi * 440 * np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE)
    with tempfile.TemporaryDirectory(prefix="nest_ssl-") as folder:
        return [kind for kind, how in (kinds or KINDS).items() if _decodes(samples, Path(folder), *how)]


def _decodes(samples: np.ndarray, folder: Path, suffix: str, form: str, subtype: str) -> bool:
    path = folder / f"sound.{suffix}"
    try:
        soundfile.write(path, samples, SAMPLE_RATE, format=form, subtype=subtype)
        read = AudioSegment.from_file(str(path), target_sr=SAMPLE_RATE).samples
    except (AudioError, soundfile.SoundFileError, RuntimeError, ValueError, TypeError):  # an old version of soundfile
        return False
    loudness, of_samples = (float(np.sqrt(np.mean(np.square(some)))) for some in (read, samples))
    return abs(len(read) - len(samples)) < SAMPLE_RATE / 4 and abs(loudness / of_samples - 1) < 0.25
