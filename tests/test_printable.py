"""No output contains characters that control a terminal, whatever the text, except for our own newlines and styles."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from nest_ssl.apps.doctor import CheckResult
from nest_ssl.apps.doctor.diagnosis import findings_table
from nest_ssl.cli.exits import exit_with
from nest_ssl.cli.terminal import Bar, show
from nest_ssl.errors import NestError
from nest_ssl.printable import printable, say, say_lines
from nest_ssl.training import run
from nest_ssl.training.console import messages

NASTY = (
    "a\x1b[2J\x1b]0;title\x07\r\nerror: no\x00\x9b31m\u202egpj.exe\u2066\u2028x\x7f\udcff[bold]b[/bold][link=http://x]"
)
ORDINARY = "数据/说话人 Ünïcödé עברית العربية हिन्दी 👩‍👩‍👧 🏳️‍🌈 naïve [1, 2] C:\\a\\b 'q' \"d\""
BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def obeyed(text: str) -> set[str]:
    """Return the control characters in a text, by Unicode's categories, and those that change the writing direction."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")} | (BIDI & set(text))


def fail_as_command(text: str) -> None:
    def fails() -> int:
        raise NestError(text)

    with pytest.raises(typer.Exit):
        exit_with(fails)


def log(text: str) -> None:
    with messages():
        logging.getLogger("nest_ssl.data").warning("%s: skipped", text)


def bar(text: str) -> None:
    one = Bar("read")
    one._shown_at = -1e9
    one(1, 2, text)


OUTLETS: dict[str, Callable[[str], object]] = {
    "a line": say,
    "an error": lambda text: say(text, error=True),
    "the error of a command": fail_as_command,
    "the error of a run": run._fail,
    "a message of a run": log,
    "lines of a command": lambda text: show([text]),
    "progress without a terminal": bar,
}


@pytest.mark.parametrize("outlet", OUTLETS)
@given(text=st.text(max_size=40))
@example(text=NASTY)
@example(text=ORDINARY)
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_text_is_one_line_without_control_characters(
    outlet: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    OUTLETS[outlet](text)
    shown = capsys.readouterr()
    line = shown.out + shown.err
    assert line.count("\n") == 1
    assert not obeyed(line.removesuffix("\n"))
    assert printable(text) in line


@given(text=st.text(max_size=40))
@example(text=NASTY)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_styles_are_the_only_sequences_that_pass(text: str) -> None:
    table = findings_table([CheckResult(name=text, state="ok", found=text, advice=text)])
    from rich.console import Console

    console = Console(width=200, force_terminal=True, color_system="truecolor", legacy_windows=False)
    with console.capture() as captured:
        console.print(table)
    assert not obeyed(re.sub("\x1b\\[[0-9;]*m|\n", "", captured.get()))


def test_letters_of_all_languages_are_unchanged() -> None:
    assert printable(ORDINARY) == ORDINARY
    assert cell_len(printable(ORDINARY)) == cell_len(ORDINARY)
    assert printable(NASTY).startswith("a\\x1b[2J\\x1b]0;title\\x07\\r\\nerror: no\\x00\\x9b31m\\u202egpj.exe")


def test_a_styled_line_keeps_its_colours_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    say("\x1b[1;32mok\x1b[0m \x1b[2J\x1b]8;;http://x\x07", styled=True)
    assert capsys.readouterr().out == "\x1b[1;32mok\x1b[0m \\x1b[2J\\x1b]8;;http://x\\x07\n"


def test_several_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say_lines("one\n  two\x1b[2J\n")
    assert capsys.readouterr().out == "one\n  two\\x1b[2J\n\n"


def test_on_a_terminal_markup_in_a_state_is_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Bar("checked") as shown:
        shown(1, 2, "[link=x]a[/link]\x1b]0;t\x07")
    written = capsys.readouterr().err
    assert "[link=x]a[/link]\\x1b]0;t\\x07" in re.sub("\x1b\\[[0-9;]*m", "", written)
    assert "\x07" not in written


# printable.py itself; what start.py prints while it installs; the script in NeMo's environment, which has no nest_ssl,
# and whose output is printed by those who start it
ONLY_OUR_OWN_WORDS = ("printable.py", "environments.py", "apps/alignment/nemo_side.py")


def test_no_print_bypasses_the_escaping_of_foreign_text() -> None:
    """A direct `print` would not escape control characters; the allowed ones print JSON or our own words."""
    package = Path(run.__file__).parents[1]
    allowed = re.compile(r"print\((json\.dumps|f\"nest-ssl |\"error: the first process|f\"\\rmaking audio)")
    found = [
        f"{path.relative_to(package).as_posix()}: {line.strip()}"
        for path in sorted(package.rglob("*.py"))
        if not path.relative_to(package).as_posix().startswith(ONLY_OUR_OWN_WORDS)
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"(?<![\w.\"])print\(", line) and not allowed.search(line)
    ]
    assert found == []
