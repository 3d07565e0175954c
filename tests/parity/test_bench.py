"""`python start.py bench` measures both implementations on the same work: the same clips give the same losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.job import Job
from benchmarks.plan import EXACT, NEMO, Measurement, overrides_for
from nest_ssl.data.dummy import make_dummy_corpus
from tests.benchmarks.conftest import TINY
from tests.parity.conftest import THREADS
from tests.parity.variants import CONFIG, ROOT


@pytest.fixture
def measured(nemo: str, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """The numbers of each implementation for two steps."""
    make_dummy_corpus(tmp_path / "data", train=6, val=1, noise=2)
    train, noise = (tmp_path / "data" / f"{name}_manifest.json" for name in ("train", "noise"))
    measurement = Measurement("test", "rate", 4.0, batch_size=2, steps=2, overrides=TINY)
    results = {}
    for side, python in ((NEMO, nemo), (EXACT, sys.executable)):
        overrides = overrides_for(measurement, side, train, noise, workers=0)
        job, result = tmp_path / "job.json", tmp_path / f"{side.name}.json"
        job.write_text(json.dumps(asdict(Job("train", str(CONFIG), "small", overrides, steps=2, seed=1))))
        command = [python, "-m", "benchmarks.side", side.implementation, str(job), str(result), str(time.time())]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **THREADS}, check=True)
        results[side.name] = json.loads(result.read_text())
    return results


def test_both_sides_are_measured_on_the_same_steps(measured: dict[str, dict[str, Any]]) -> None:
    assert {side: numbers.get("error") for side, numbers in measured.items()} == {"NeMo": None, "exact": None}
    losses, audio = (
        {side: [step[what] for step in numbers["steps"]] for side, numbers in measured.items()}
        for what in ("loss", "real")
    )
    assert losses["NeMo"] == losses["exact"]
    assert audio["NeMo"] == audio["exact"]
    assert all(numbers["rate"] > 0 for numbers in measured.values())
