"""An app can be deleted: the core's tests pass without all of them, and nothing but its users misses a single one.

The core's tests also have to pass as other systems would run them (tests/elsewhere); one copy shows both at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_elsewhere import SAME_EVERYWHERE, SPAWNS_MUCH
from tests.test_quality import APPS, CORE, MODULES
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
READS_REPOSITORY = "tests/checkpoint/test_only_reader.py"
SLOWEST = ("tests/data/lhotse/test_lhotse_data.py", "tests/model/test_compile.py")
IMPORT_ALL = """
import importlib, runpy, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
sys.argv[1:] = ["--help"]
runpy.run_module("nest_ssl", run_name="__main__")
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the core and its tests."""
    copy = copy_without(tmp_path_factory.mktemp("core"), "apps")
    for name in ("tests", "config"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "apps", "cli"))
    for name in ("pyproject.toml", "train.py", "train_with_saver.py"):
        shutil.copy(ROOT / name, copy)
    with pytest.raises(AssertionError, match=r"No module named 'nest_ssl\.apps'"):
        run(copy, "-c", "import nest_ssl.apps")
    return copy


def test_the_core_passes_its_tests_elsewhere_without_any_app(core: Path) -> None:
    ignored = [f"--ignore={name}" for name in (*SPAWNS_MUCH, *SAME_EVERYWHERE, READS_REPOSITORY)]
    folders = [f"tests/{part}" for part in CORE if part != "model"]
    run(core, "-m", "tests.elsewhere", "-q", "-x", "-m", "not slow", *ignored, *folders)


def test_what_is_left_of_the_core_passes_its_tests_without_any_app(core: Path) -> None:
    files = [name for name in (*SPAWNS_MUCH, *SAME_EVERYWHERE, "tests/model") if name not in SLOWEST]
    ignored = [f"--ignore={name}" for name in SLOWEST]
    run(core, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *ignored, *files)


@pytest.mark.parametrize("app", APPS)
def test_only_its_users_fail_without_an_app(app: str, tmp_path: Path) -> None:
    copy = copy_without(tmp_path, f"apps/{app}", f"apps/{app}.py")
    missing = {app, *users(app)}
    kept = [path for path in MODULES if path.parts[len(ROOT.parts) :][1:3] not in _places(missing)]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in kept]
    assert "train" in run(copy, "-c", IMPORT_ALL, *(name for name in names if not name.endswith("__main__")))


def users(app: str) -> set[str]:
    """Return the apps that build on this one, directly or through others."""
    direct = {other for other, used in APPS.items() if app in used}
    return direct.union(*(users(other) for other in direct))


def copy_without(folder: Path, *removed: str) -> Path:
    copy = folder / "copy"
    shutil.copytree(ROOT / "nest_ssl", copy / "nest_ssl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in removed:
        path = copy / "nest_ssl" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return copy


def run(folder: Path, *arguments: str) -> str:
    """Run Python in the copy, whose package it imports, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=8 * PATIENCE
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def _places(apps: set[str]) -> set[tuple[str, ...]]:
    return {("apps", name) for app in apps for name in (app, f"{app}.py")}
