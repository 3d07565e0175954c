"""Train for hours, and check that memory, open files and processes do not grow: `python start.py soak --hours 2`

It trains the demonstration's model, with workers that restart every epoch, noise, validations and checkpoints. It reads
/proc, so it needs Linux. It counts at the end of each epoch (soak_run.py): only then every batch was consumed, and the
count does not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# glibc returns free memory at once, so that growth means a leak; otherwise fragmentation raises memory for hours
GIVES_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
WARM_UP = 0.5  # share of the samples in which caches still fill
MOST_GROWTH = 0.03  # of memory, from the first to the last third of the rest; allocators vary by about 0.01
SAMPLES_VARIABLE = "NEST_SOAK_SAMPLES"  # where the run writes its samples
SETTINGS = (
    "--config-name=nest_tiny",
    *("model.train_ds.num_workers=2", "model.validation_ds.num_workers=1"),
    *("trainer.max_epochs=-1", "trainer.max_steps=-1", "trainer.enable_progress_bar=false"),
)


@dataclass(frozen=True)
class Sample:
    """The memory, open files and processes of a run at the end of an epoch."""

    minutes: float
    megabytes: float  # memory of the main process; its workers exist for one epoch only
    open_files: int
    processes: int


def soak(folder: Path, overrides: Sequence[str] = ()) -> list[Sample]:
    """Train in a new folder until the end; return one sample per epoch."""
    written = folder / "samples.jsonl"
    with (folder / "log.txt").open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak_run", *SETTINGS, f"exp_manager.exp_dir={folder}", *overrides],
            cwd=ROOT,
            env={**os.environ, **GIVES_BACK, SAMPLES_VARIABLE: str(written)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    samples: list[Sample] = []
    try:
        while run.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                run.wait(1)
            for sample in _read(written)[len(samples) :]:
                samples.append(sample)
                print(_line(sample), flush=True)
    finally:
        run.terminate()
        run.wait()
    if run.returncode:
        raise RuntimeError(f"the run ended with code {run.returncode}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    return samples


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return a sentence for everything that has grown."""
    rest = samples[int(len(samples) * WARM_UP) :]
    third = len(rest) // 3
    if not third:
        return ["too few epochs to tell; train for longer"]
    found = []
    for name, allowed in (("megabytes", MOST_GROWTH), ("open_files", 0.0), ("processes", 0.0)):
        first = statistics.median(getattr(sample, name) for sample in rest[:third])
        last = statistics.median(getattr(sample, name) for sample in rest[-third:])
        if last > first * (1 + allowed):
            found.append(f"{name} grew from {first:g} to {last:g}")
    return found


def _read(path: Path) -> list[Sample]:
    """Read the samples so far, without a line that is still being written."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Sample(**json.loads(line)) for line in lines if line.endswith("\n")]


def _line(sample: Sample) -> str:
    return (
        f"{sample.minutes:7.1f} min  {sample.megabytes:7.0f} MB  {sample.open_files:4d} open files  "
        f"{sample.processes:2d} processes"
    )


def _clock(hours: float) -> str:
    seconds = round(hours * 3600)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="start.py soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0, help="how long to train (default 2)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the configuration")
    options = parser.parse_args(arguments)
    if not Path("/proc/self/fd").is_dir():
        print("start.py soak: looks into /proc, which only Linux has", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        samples = soak(Path(folder), [f"trainer.max_time=00:{_clock(options.hours)}", *options.overrides])
        print(*re.findall(r"^trained .*", (Path(folder) / "log.txt").read_text(), re.MULTILINE))
    found = growth(samples)
    print("\n".join(found) or "nothing grew")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
