"""Import paths of earlier documentation stay valid."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from nest_ssl.config.targets import resolve
from nest_ssl.moved import MOVED


@pytest.mark.parametrize("path", MOVED)
def test_an_old_path_gives_the_module_that_took_its_place(path: str) -> None:
    code = f"import importlib; import {path} as old; assert old is importlib.import_module('{MOVED[path]}')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_classes_are_the_same_under_both_paths() -> None:
    old = importlib.import_module("nest_ssl.modules.conformer.encoder").ConformerEncoder
    assert old is importlib.import_module("nest_ssl.model").ConformerEncoder
    assert resolve("nest_ssl.modules.conformer.encoder.ConformerEncoder", "model.encoder") is old


def test_an_unknown_module_is_still_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nest_ssl.featurs")
