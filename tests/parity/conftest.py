"""Train every selected variant once with NeMo and once with nest_ssl, before the first comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nest_ssl.data.dummy import make_dummy_corpus
from tests.parity.corpora import make_lhotse_corpus, make_mixed_corpus, make_tarred_corpora
from tests.parity.matrix import write_matrix
from tests.parity.variants import AGAIN, CONFIG, ROOT, SEED, VARIANTS

RECORD = Path(__file__).with_name("record.py")
# equally many threads give the same order of sums; threads that spin would slow down a busy machine
THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix", type=Path, metavar="FILE.md", help="write the table of all variants (docs/parity.md and .zh.md)"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a table that would be incomplete or cannot be written, before anything is trained."""
    matrix = session.config.getoption("matrix")
    if matrix is None:
        return
    missing = len(VARIANTS.keys() - _selected(session))
    if missing:
        raise pytest.UsageError(f"--matrix needs all {len(VARIANTS)} variants and {missing} are not selected: drop -k")
    if not matrix.parent.is_dir():
        raise pytest.UsageError(f"--matrix is {matrix}, but there is no folder {matrix.parent}: make it first")


@pytest.fixture(scope="session")
def nemo() -> str:
    """The Python interpreter with NeMo 3.0.0; our numbers must equal those of this version."""
    return _interpreter_from("NEST_NEMO_PYTHON")


@pytest.fixture(scope="session")
def nemo_273() -> str:
    """The Python interpreter with NeMo 2.7.3, an older version whose archives and recordings must be readable, too."""
    return _interpreter_from("NEST_NEMO_273_PYTHON")


def _interpreter_from(variable: str) -> str:
    python = os.environ.get(variable)
    if not python:
        raise pytest.UsageError(f"{variable} names no interpreter with NeMo: use `python start.py parity`")
    return python


@pytest.fixture(scope="session")
def recordings(
    request: pytest.FixtureRequest, nemo: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Path]]:
    """The folder of recordings of each implementation; both are recorded at the same time."""
    folder = tmp_path_factory.mktemp("parity")
    plan = folder / "plan.json"
    plan.write_text(json.dumps(_plan(request.session, folder)), encoding="utf-8")
    pythons = {"nemo": nemo, "nest_ssl": sys.executable}
    with ThreadPoolExecutor() as pool:
        recorded = {
            implementation: pool.submit(_record, python, implementation, plan, folder / implementation)
            for implementation, python in pythons.items()
        }
    folders = {implementation: future.result() for implementation, future in recorded.items()}
    yield folders
    matrix = request.config.getoption("matrix")
    if matrix:
        write_matrix(matrix, folders)


def _selected(session: pytest.Session) -> set[str]:
    """Return the variants whose tests were selected."""
    callspecs = [getattr(item, "callspec", None) for item in session.items]
    return {spec.params["variant"] for spec in callspecs if spec is not None and "variant" in spec.params}


def _plan(session: pytest.Session, folder: Path) -> dict[str, object]:
    """Return the plan of a recording: the variants whose tests were selected, on corpora that are made here."""
    make_dummy_corpus(folder / "dummy")
    make_mixed_corpus(folder / "mixed")
    make_tarred_corpora(folder / "dummy")
    make_lhotse_corpus(folder / "mixed")
    names = [name for name in VARIANTS if name in _selected(session)] or list(VARIANTS)[:1]
    repeated = min(names, key=lambda name: VARIANTS[name].steps)
    runs = {**{name: VARIANTS[name] for name in names}, repeated + AGAIN: VARIANTS[repeated]}
    return {
        "config": str(CONFIG),
        "seed": SEED,
        "variants": [
            {
                "name": name,
                "steps": variant.steps,
                "resumed_after": variant.resumed_after,
                "overrides": variant.overrides(folder / "dummy", folder / "mixed"),
            }
            for name, variant in runs.items()
        ],
    }


def _record(python: str, implementation: str, plan: Path, output: Path) -> Path:
    """Run record.py in the environment of this implementation."""
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
