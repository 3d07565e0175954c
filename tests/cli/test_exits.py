"""Commands that fail end with code 2, because 1 is a result; a full disk gives one line, a bug a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from nest_ssl.cli.exits import exit_with
from nest_ssl.errors import NestError

ROOT = Path(__file__).parents[2]


def leave(error: BaseException | None = None, code: int = 0) -> int:
    """Return the exit code of a command that ends with this error or code."""

    def run() -> int:
        if error is not None:
            raise error
        return code

    with pytest.raises(typer.Exit) as left:
        exit_with(run)
    return left.value.exit_code


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NestError("a.json: is not a file"), "a.json: is not a file"),
        (FileNotFoundError(2, "No such file or directory", "/proc/x"), "/proc/x: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (TimeoutError("waited\nlong"), "waited long"),
    ],
)
def test_errors_of_the_input_and_the_system_give_one_line(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(error) == 2
    assert capsys.readouterr() == ("", f"error: {line}\n")


def test_a_bug_shows_its_traceback_and_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(ZeroDivisionError("a bug")) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last):")
    assert shown.endswith("ZeroDivisionError: a bug\n")


def test_exit_codes_of_results_and_interruptions_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    assert [leave(code=code) for code in (0, 1)] == [0, 1]
    assert leave(KeyboardInterrupt()) == 130
    assert leave(BrokenPipeError(32, "Broken pipe")) == 141
    assert capsys.readouterr() == ("", "")


COMMAND = "import typer; from nest_ssl.cli.exits import exit_with; typer.run(lambda: exit_with(lambda: print({}) or 0))"


def run(output: int, text: str, unbuffered: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", COMMAND.format(text)]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env=environment, text=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_a_failure(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = run(full.fileno(), "'a few words'", unbuffered)
    assert done.returncode == 2
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="pipes as on Unix")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_gives_no_error_message(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(writer, "'word ' * 100_000", unbuffered)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
