"""`nest-ssl bench` does the same as `python start.py bench`, in any working directory."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.run import parse
from nest_ssl.cli import bench
from nest_ssl.cli.app import app


def test_it_has_the_options_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capsys.readouterr().out
    command = typer.main.get_command(app).commands["bench"]  # type: ignore[attr-defined]
    ours = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    theirs = {word.strip("[]") for word in told.partition("options:")[0].split() if word.startswith("[--")}
    assert ours - {"--help"} == theirs


def test_options_reach_the_script(tmp_path: Path) -> None:
    arguments = ["--quick", "--no-nemo", "--only", "nothing", "--workers", "2", "--folder", str(tmp_path)]
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: --only nothing: no such measurement; there are ")


def test_without_the_source_it_says_where_the_benchmarks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_ROOT", tmp_path)
    done = CliRunner().invoke(app, ["bench", "--quick"])
    assert done.exit_code == 2
    assert "in a clone: python start.py bench" in done.stderr
    assert done.stderr.count("\n") == 1
