"""The command `nest-ssl report`: its files, its output and its exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nest_ssl.cli.app import app
from tests.apps.report.example_runs import write_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments: CliRunner().invoke(app, ["report", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "experiments" / "one", began=time.time() - 200, steps=500)


def test_the_page_is_written_into_the_runs_folder(run: Callable[..., Result], folder: Path) -> None:
    done = run("experiments/one")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "report: experiments/one/report.html\n", "")
    assert "Codebooks" in (folder / "report.html").read_text("utf-8")


def test_a_folder_of_runs_means_the_newest_and_says_so(run: Callable[..., Result], folder: Path) -> None:
    done = run("experiments")
    assert (done.exit_code, done.stdout) == (0, "report: experiments/one/report.html\n")
    assert done.stderr == "experiments: the newest run below it is experiments/one\n"


def test_the_page_can_be_written_elsewhere(run: Callable[..., Result], folder: Path, tmp_path: Path) -> None:
    assert run("experiments/one", "--output", "pages/one.html").exit_code == 0
    assert (tmp_path / "pages" / "one.html").read_text("utf-8").endswith("</html>\n")
    assert not (folder / "report.html").exists()


def test_json_holds_key_figures_and_verdicts_and_nothing_else_is_printed(
    run: Callable[..., Result], folder: Path
) -> None:
    done = run("experiments/one", "--json")
    (found,) = json.loads(done.stdout)
    assert (found["state"], found["health"], found["figures"]["step"]) == ("running", "good", 500)
    assert found["figures"]["val_loss"] == pytest.approx(2.4, abs=1.5)
    assert {finding["finding"] for finding in found["findings"]} >= {"learning", "varied_targets"}
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["experiments/one/samples"], "experiments/one/samples: not the folder of a run, nor is there one below it: "),
        (["experiments/one", "experiments/one"], "experiments/one: named twice"),
        (["experiments/one", "--output", "experiments/one/config.yaml/page.html"], "cannot be written"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    run: Callable[..., Result], folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "samples").mkdir()
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
