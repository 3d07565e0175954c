"""Printed commands can be copied and run."""

from __future__ import annotations

import shlex
import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from nest_ssl.shell import as_typed, hydra_value

ODD = ["plain.json", "with space.json", "it's.json", "语音 (1)/a&b.json", "a,b.json", "[1]=$x.json", 'say "hi".json']


@pytest.mark.skipif(sys.platform == "win32", reason="its shells split words otherwise")
def test_a_shell_reads_quoted_words_unchanged() -> None:
    assert shlex.split(as_typed(["nest-ssl data check", *ODD])) == ["nest-ssl", "data", "check", *ODD]
    assert as_typed(["train.py", "a=1"]) == "python train.py a=1"


@pytest.mark.parametrize("system", ["linux", "win32"])
def test_hydra_reads_quoted_paths_unchanged(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    for paths in (*([path] for path in [*ODD, r"C:\a b\c.json"]), ODD):
        (override,) = OverridesParser.create().parse_overrides([f"key={hydra_value(paths)}"])
        value = override.value()
        read = [value] if len(paths) == 1 else value
        assert [str(path) for path in read] == paths  # type: ignore[union-attr]


def test_windows_gets_double_quotes_around_words_that_its_shells_would_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert as_typed(["nest-ssl data check", r"C:\a.json"]) == r"nest-ssl data check C:\a.json"
    assert as_typed(["nest-ssl data check", r"C:\R&D\a.json"]) == r'nest-ssl data check "C:\R&D\a.json"'
    assert as_typed(["nest-ssl train", r"a=['C:\b c.json',d]"]) == r'''nest-ssl train "a=['C:\b c.json',d]"'''
