"""The files of the project: GitHub can run the workflow, the hooks pass, and tools can read the citation."""

from __future__ import annotations

import os
import re
import shutil
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
in_a_clone = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a clone, or there is no git"
)


def test_the_workflow_runs_tasks_that_exist_on_the_pythons_that_are_declared() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    tasks = re.findall(r"start\.py *(\S*)", text)  # an empty name is the demonstration
    assert {"demo", "test", "parity"} <= set(tasks) <= {"", *start.TASKS}
    matrix = yaml.safe_load(text)["jobs"]["tests"]["strategy"]["matrix"]
    pythons = {*matrix["python"], *(row["python"] for row in matrix["include"])}
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(declared) == sorted(pythons)


def test_the_citation_names_this_version() -> None:
    assert yaml.safe_load(CITATION.read_text(encoding="utf-8"))["version"] == nest_ssl.__version__


@pytest.mark.parametrize(
    "arguments", [["validate-config"], ["run", "codespell", "--all-files"]], ids=["valid", "spelling"]
)
@in_a_clone
def test_the_pre_commit_hooks_pass(arguments: list[str], tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # they run `python`: ours
    environment = {**os.environ, "PATH": path, "PRE_COMMIT_HOME": str(tmp_path)}
    command = [sys.executable, "-I", "-m", "pre_commit", *arguments]  # -I also shields it from tests/elsewhere
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr


@in_a_clone
def test_text_files_have_the_same_line_ends_on_every_system() -> None:
    listed = subprocess.run(["git", "ls-files", "--eol"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    kinds = {(line.split()[0], line.split("attr/")[1].split("\t")[0].strip()) for line in listed.stdout.splitlines()}
    assert kinds <= {("i/lf", "text=auto eol=lf"), ("i/none", "text=auto eol=lf"), ("i/-text", "-text")}
