"""Import paths of earlier documentation stay valid."""

from __future__ import annotations

import importlib
import subprocess
import sys
from itertools import chain

import pytest

from nest_ssl.config.targets import resolve
from nest_ssl.moved import MOVED

# Each old path is the first import of a program: of nest_ssl, nothing is loaded before it
IMPORT_FIRST = """
import importlib, sys
for path, place in zip(sys.argv[1::2], sys.argv[2::2]):
    for name in [name for name in sys.modules if name.split(".")[0] == "nest_ssl"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "MovedModules"]
    old = importlib.import_module(path)
    assert old is importlib.import_module(place), path
"""


def test_an_old_path_gives_the_module_that_took_its_place() -> None:
    subprocess.run([sys.executable, "-c", IMPORT_FIRST, *chain.from_iterable(MOVED.items())], check=True)


def test_classes_are_the_same_under_both_paths() -> None:
    old = importlib.import_module("nest_ssl.modules.conformer.encoder").ConformerEncoder
    assert old is importlib.import_module("nest_ssl.model").ConformerEncoder
    assert resolve("nest_ssl.modules.conformer.encoder.ConformerEncoder", "model.encoder") is old


def test_an_unknown_module_is_still_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nest_ssl.featurs")
