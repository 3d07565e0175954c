"""Measure NeMo and nest_ssl in turn, and write the table: `python start.py bench`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.corpus import Clip, Corpus, load_corpus, write_manifest
from benchmarks.job import Job
from benchmarks.plan import Measurement, Side, batch_size_to_60, overrides_for, plan
from benchmarks.results import Result, Results
from benchmarks.table import goals_met, write_table
from nest_ssl.compat import cpu_multiplies_bf16
from nest_ssl.config.machine import processor
from nest_ssl.environments import NEWEST_NEMO, cache_folder, nemo_python
from nest_ssl.errors import NestError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
CONFIG = ROOT / "config" / "nest_fast-conformer.yaml"
# estimates for the time left: seconds to start a process, and padded seconds of audio per second
START = {"nemo": 18.0, "nest_ssl": 7.0}
SPEED = {"large": 8.0, "small": 20.0}
OUT_OF_MEMORY = "killed, most likely because memory ran out"


@dataclass(frozen=True)
class Turn:
    """One process: a side's turn in a round of a measurement."""

    measurement: Measurement
    side: Side
    round: int
    clips: list[Clip]

    def estimated_seconds(self) -> float:
        if self.measurement.kind != "train":
            return START[self.side.implementation] + 8
        size = self.measurement.batch_size
        padded = sum(
            max(clip.duration for clip in self.clips[start : start + size]) * size
            for start in range(0, len(self.clips), size)
        )
        real = sum(clip.duration for clip in self.clips)
        seconds = real if self.side.skips_padding else padded
        return START[self.side.implementation] + seconds / SPEED[self.measurement.size]


class TurnRunner:
    """Runs the processes one after the other, and stores their results."""

    def __init__(self, corpus: Corpus, nemo: Path | None, results: Results, folder: Path, workers: int) -> None:
        self.corpus = corpus
        self.pythons = {"nest_ssl": Path(sys.executable), "nemo": nemo}
        self.results = results
        self.folder = folder
        self.workers = workers

    def turns(self, measurements: Sequence[Measurement]) -> list[Turn]:
        """Return the turns round by round, so that a busy machine slows all sides; each starts with another side."""
        return [
            Turn(measurement, side, number, measurement.choose(self.corpus, number))
            for measurement in measurements
            for number in range(measurement.rounds)
            for side in _from(measurement.sides, number)
            if not self.results.has(measurement.name, side.name, number)
        ]

    def run(self, turns: Sequence[Turn]) -> None:
        began, estimated = time.monotonic(), [turn.estimated_seconds() for turn in turns]
        for index, turn in enumerate(turns):
            done, left = sum(estimated[:index]), sum(estimated[index:])
            if done:
                left *= (time.monotonic() - began) / done
            what = f"{turn.measurement.name}, {turn.side.name}, round {turn.round + 1} of {turn.measurement.rounds}"
            print(
                f"[{index + 1}/{len(turns)}, about {max(1, round(left / 60))} min left] {what} ...", end=" ", flush=True
            )
            numbers = self._take(turn)
            print(
                numbers.get("error") or f"{numbers[turn.measurement.metric]:.3g} ({turn.measurement.metric})",
                flush=True,
            )
            self.results.runs.append(Result(turn.measurement.name, turn.side.name, turn.round, numbers))
            self.results.write(self.folder / "results.json")

    def _take(self, turn: Turn) -> dict[str, Any]:
        """Run one process; return its numbers or its error."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            manifest, job, result = folder / "train.json", folder / "job.json", folder / "result.json"
            write_manifest(
                manifest, self.corpus.prompts_of(turn.measurement.clips) if turn.side.buckets else turn.clips
            )
            job.write_text(json.dumps(asdict(self._job(turn, manifest))), encoding="utf-8")
            implementation = turn.side.implementation
            command = [
                str(self.pythons[implementation]),
                "-m",
                "benchmarks.side",
                implementation,
                str(job),
                str(result),
            ]
            log = self.folder / f"{turn.measurement.name}-{turn.side.name.replace(', ', '-')}-{turn.round + 1}.log"
            with log.open("wb") as file, _neighbours(turn.measurement.busy):
                process = subprocess.run(
                    [*command, str(time.time())],
                    cwd=ROOT,
                    env={**_environment(), **dict(turn.side.environment)},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            if result.is_file():
                return json.loads(result.read_text(encoding="utf-8"))
            why = OUT_OF_MEMORY if process.returncode == -9 else f"ended with code {process.returncode}"
            return {"error": f"{why}; see {log.name}"}

    def _job(self, turn: Turn, manifest: Path) -> Job:
        measurement = turn.measurement
        overrides = overrides_for(measurement, turn.side, manifest, self.corpus.noise_manifest, self.workers)
        if turn.side.buckets:
            overrides = (*overrides, f"model.train_ds.shard_seed={turn.round}")
        return Job(
            kind=measurement.kind,
            config=str(CONFIG),
            size=measurement.size,
            overrides=overrides,
            steps=measurement.steps,
            seed=turn.round + 1,
            stages=measurement.stages,
            matrix_peak=measurement.matrix_peak,
        )


def _from(sides: tuple[Side, ...], start: int) -> tuple[Side, ...]:
    start %= len(sides)
    return sides[start:] + sides[:start]


@contextlib.contextmanager
def _neighbours(busy: bool) -> Iterator[None]:
    """Keep every core busy with another program, if the measurement asks for it."""
    compute = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(compute) for _ in range(os.cpu_count() or 1)] if busy else []
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _environment() -> dict[str, str]:
    """Set the same number of threads for both sides: all cores, or what the user has set."""
    return {"OMP_NUM_THREADS": str(os.cpu_count()), **os.environ}


def about(corpus: Corpus, quick: bool, workers: int) -> dict[str, str]:
    """Return the machine, the versions and the options that the numbers depend on."""
    return {
        "processor": f"{processor()} ({_instructions()})",
        "cores": str(os.cpu_count()),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "corpus": corpus.kind,
        "workers": str(workers),
        "batch to 60": str(batch_size_to_60()),
        "plan": "quick" if quick else "full",
    }


def _instructions() -> str:
    """Return the widest vectors that torch uses on this processor, and whether it multiplies bfloat16."""
    widest = torch.backends.cpu.get_cpu_capability()
    return f"{widest}, bfloat16" if cpu_multiplies_bf16() else widest


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="start.py bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: fewer measurements, fewer steps")
    parser.add_argument("--no-nemo", action="store_true", help="measure nest_ssl only")
    parser.add_argument("--only", metavar="NAME", help="repeat one measurement; the others keep their results")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="continue a stopped run")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes for data loading (default 0)")
    parser.add_argument(
        "--install-speech", action="store_true", help="install real speech from Debian packages with apt"
    )
    parser.add_argument("--output", type=Path, help="file for the table (default: docs/benchmarks.md)")
    parser.add_argument("--folder", type=Path, help="folder for audio and results (default: the cache folder)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return bench(options)
    except NestError as error:
        print(f"start.py bench: {error}", file=sys.stderr)
        return 1


def bench(options: argparse.Namespace) -> int:
    measurements = plan(options.quick, not options.no_nemo, cpu_multiplies_bf16())
    if options.only:
        names = [measurement.name for measurement in measurements]
        if options.only not in names:
            raise NestError(f"--only {options.only}: no such measurement; there are {', '.join(names)}")
        measurements = [measurement for measurement in measurements if measurement.name == options.only]
    folder = options.folder or cache_folder() / "bench"
    place = folder / ("quick" if options.quick else "full")
    place.mkdir(parents=True, exist_ok=True)
    print(f"audio, results and logs are kept in {folder}", flush=True)
    corpus = load_corpus(folder, options.install_speech)
    results = Results.read(place / "results.json") if options.go_on or options.only else Results()
    now = about(corpus, options.quick, options.workers)
    if results.runs and results.about != now:
        differ = ", ".join(f"{name}: {results.about.get(name)}" for name in now if results.about.get(name) != now[name])
        raise NestError(
            f"the results in {place} were measured elsewhere ({differ}); measure all of it, or use --folder"
        )
    results.about = now
    if options.only and not options.go_on:
        results.forget(options.only)
    needed = any(side.implementation == "nemo" for measurement in measurements for side in measurement.sides)
    nemo = nemo_python(NEWEST_NEMO) if needed else None
    runner = TurnRunner(corpus, nemo, results, place, options.workers)
    try:
        runner.run(runner.turns(measurements))
    except KeyboardInterrupt:
        print("\nstopped; `python start.py bench --continue` with the same options continues from here")
        return 130
    finally:
        if results.runs:
            output = options.output or _page(results, options.only, place)
            write_table(results, output)
            print("\n".join(goals_met(results)))
            print(f"table: {output}")
    return 0


def _page(results: Results, only: str | None, place: Path) -> Path:
    """Return the page of the docs; a single measurement does not replace the page of another machine."""
    alone = only is not None and all(run.measurement == only for run in results.runs)
    return place / f"{only}.md" if alone else PAGE


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, which also ends the running process
    sys.exit(main())
