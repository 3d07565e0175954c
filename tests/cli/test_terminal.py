"""The progress of commands, on a terminal and without one."""

from __future__ import annotations

import pytest

from nest_ssl.cli import terminal
from nest_ssl.cli.terminal import AudioBar, Bar, show


def test_without_a_terminal_progress_is_printed_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with Bar("checked") as bar:
        for now in (1.0, 14.0, 16.0, 17.0, 32.0):
            bar(now, 64, "some lines")
    shown = capsys.readouterr()
    assert shown.err == "checked 25%: some lines\nchecked 50%: some lines\n"
    assert shown.out == ""


def test_progress_on_audio_shows_its_speed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    bar = AudioBar("features")
    now = 20.0
    bar(300.0, 600.0, "3 files")
    assert capsys.readouterr().err == "features 50%: 3 files, 15 audio s/s\n"


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Bar("checked") as bar:
        bar(1, 2, "some lines")
    assert "some lines" in capsys.readouterr().err


def test_characters_that_the_encoding_lacks_are_escaped(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    show(["a.wav", "\udcff.wav"])
    assert capsysbinary.readouterr().out.split() == [b"a.wav", b"\\udcff.wav"]
