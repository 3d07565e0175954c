"""Help and completion of every command appear at once, and each example works unchanged."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from nest_ssl.cli.app import app
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "lightning", "hydra", "onnxruntime")
MOST_SECONDS = 1.0  # processor time, which does not depend on other programs
# Printed when a command ends: its processor time, and the modules that it should not have loaded.
RUN = f"""
import sys, time
from nest_ssl.cli import main
sys.argv[0] = "nest-ssl"
try:
    main()
except SystemExit as end:
    code = end.code
loaded = [name for name in {HEAVY} if name in sys.modules]
print(code or 0, time.process_time(), *loaded, file=sys.stderr)
"""
SHELLS = ("bash", "zsh", "fish", "powershell")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every command and every group of commands."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


ALL = list(commands(typer.main.get_command(app)))
LEAVES = [path for path in ALL if not any(other[: len(path)] == path and other != path for other in ALL)]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `nest-ssl` in a new process, with lines that are wide enough for the examples."""
    environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **variables}
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )


@cache
def help_of(path: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return run(*path, "--help")


def test_commands_are_found() -> None:
    assert {("train",), ("export",), ("bench",), ("data", "check")} <= set(LEAVES)
    assert ("data",) not in LEAVES


@pytest.mark.skipif(sys.platform == "win32", reason="how long a start takes there is not known")
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_appears_within_a_second(path: tuple[str, ...]) -> None:
    done = help_of(path)
    code, seconds, *loaded = done.stderr.split()
    assert (code, loaded) == ("0", [])
    assert float(seconds) < MOST_SECONDS
    assert "usage:" in done.stdout.lower()


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_has_an_example_whose_options_exist(path: tuple[str, ...]) -> None:
    text = help_of(path).stdout
    (example,) = re.findall(r"Example: (nest-ssl .*)", text)
    words = shlex.split(example.strip(" │"))
    assert tuple(words[1 : 1 + len(path)]) == path
    known = set(re.findall(r"--[a-z][a-z-]*", text.replace(example, "")))
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("path", [path for path in LEAVES if path != ("train",)], ids=" ".join)
def test_help_uses_the_whole_width(path: tuple[str, ...], columns: int) -> None:
    prose = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(columns)}).stdout.partition("╭")[0]
    lines = [line.strip() for line in prose.splitlines()]
    for line, following in pairwise(lines):
        if line and following:  # within a paragraph, the next word was too long for the line
            assert len(line) + 1 + len(following.split()[0]) > columns - 2, line


@pytest.mark.parametrize("path", [path for path in LEAVES if path != ("train",)], ids=" ".join)
def test_the_whole_help_text_of_options_is_shown(path: tuple[str, ...]) -> None:
    """Rich would interpret words in brackets as styles."""
    told = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "160"}).stdout
    told = " ".join(told.replace("│", " ").split())
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    for parameter in command.params:
        assert " ".join((getattr(parameter, "help", None) or "").split()) in told


@pytest.mark.parametrize("script", ["train.py", "train_with_saver.py"])
def test_help_of_the_scripts_appears_at_once(script: str) -> None:
    code = f"import runpy, sys; sys.argv[0] = '{script}'; runpy.run_path({str(ROOT / script)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, f"usage: {script}" in done.stdout) == (0, True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_for_completion(shell: str) -> None:
    done = run(_NEST_SSL_COMPLETE=f"source_{shell}")
    assert "_NEST_SSL_COMPLETE" in done.stdout
    assert f"complete_{shell}" in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("nest-ssl ex", "export"), ("nest-ssl data make", "make-dummy"), ("nest-ssl export --li", "--license")],
)
def test_every_shell_completes_commands_and_options(shell: str, typed: str, offered: str) -> None:
    last = typed.split()[-1]
    words = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }.get(shell, {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_WORD_TO_COMPLETE": last})
    done = run(_NEST_SSL_COMPLETE=f"complete_{shell}", **words)
    assert offered in done.stdout
    assert "convert" not in done.stdout
    assert "torch" not in done.stderr


def test_completion_can_be_installed_and_shown() -> None:
    text = help_of(()).stdout
    assert "--install-completion" in text
    assert "--show-completion" in text
