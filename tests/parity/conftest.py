"""Train every selected variant once with NeMo and once with nest_ssl, before the first comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nest_ssl.data.dummy import make_dummy_corpus
from tests.parity.corpora import make_mixed_corpus
from tests.parity.variants import AGAIN, CONFIG, ROOT, SEED, VARIANTS

RECORD = Path(__file__).with_name("record.py")
# the same order of sums on both sides, and no spinning, which on a busy machine costs more than the training
THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}


@pytest.fixture(scope="session")
def nemo() -> str:
    """The interpreter that has NeMo."""
    python = os.environ.get("NEST_NEMO_PYTHON")
    if not python:
        raise pytest.UsageError("NEST_NEMO_PYTHON names no interpreter with NeMo: use `python start.py parity`")
    return python


@pytest.fixture(scope="session")
def recordings(request: pytest.FixtureRequest, nemo: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of recordings of each implementation."""
    folder = tmp_path_factory.mktemp("parity")
    plan = folder / "plan.json"
    plan.write_text(json.dumps(_plan(request.session, folder)), encoding="utf-8")
    return {
        implementation: _record(python, implementation, plan, folder / implementation)
        for implementation, python in (("nemo", nemo), ("nest_ssl", sys.executable))
    }


def _plan(session: pytest.Session, folder: Path) -> dict[str, object]:
    """What to record: the variants whose tests were selected, on corpora made here."""
    make_dummy_corpus(folder / "dummy")
    make_mixed_corpus(folder / "mixed")
    callspecs = [getattr(item, "callspec", None) for item in session.items]
    selected = {spec.params["variant"] for spec in callspecs if spec is not None and "variant" in spec.params}
    names = [name for name in VARIANTS if name in selected] or list(VARIANTS)[:1]
    runs = {**{name: VARIANTS[name] for name in names}, names[0] + AGAIN: VARIANTS[names[0]]}
    return {
        "config": str(CONFIG),
        "variants": [
            {
                "name": name,
                "steps": variant.steps,
                "seed": SEED,
                "overrides": variant.overrides(folder / "dummy", folder / "mixed"),
            }
            for name, variant in runs.items()
        ],
    }


def _record(python: str, implementation: str, plan: Path, output: Path) -> Path:
    """Run record.py in the environment that has this implementation."""
    path = {"PYTHONPATH": str(ROOT) if implementation == "nest_ssl" else ""}
    finished = subprocess.run(
        [python, str(RECORD), implementation, str(plan), str(output)],
        env={**os.environ, **THREADS, **path},
        capture_output=True,
        text=True,
        errors="replace",
    )
    output.mkdir(exist_ok=True)
    (output / "log.txt").write_text(finished.stdout + finished.stderr, encoding="utf-8")
    if finished.returncode:
        pytest.fail(f"recording {implementation} failed:\n{(finished.stdout + finished.stderr)[-4000:]}", pytrace=False)
    return output
