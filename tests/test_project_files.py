"""The files around the code: a workflow that GitHub can run, a citation that tools can read, versions that agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import nest_ssl
import start

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "tests.yml"
CITATION = ROOT / "CITATION.cff"


@pytest.mark.parametrize(
    ("path", "schema"),
    [(WORKFLOW, "github-workflows"), (CITATION, "citation-file-format")],
    ids=["workflow", "citation"],
)
def test_follows_its_schema(path: Path, schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_runs_tasks_that_exist_on_the_pythons_that_are_declared() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    tasks = [task for task in re.findall(r"start\.py (\S+)", text) if "=" not in task]
    assert {"test", "parity"} <= set(tasks) <= set(start.TASKS)
    matrix = yaml.safe_load(text)["jobs"]["tests"]["strategy"]["matrix"]
    pythons = {*matrix["python"], *(row["python"] for row in matrix["include"])}
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(declared) == sorted(pythons)


def test_the_citation_names_this_version() -> None:
    assert yaml.safe_load(CITATION.read_text(encoding="utf-8"))["version"] == nest_ssl.__version__
