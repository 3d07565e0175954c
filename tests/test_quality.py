"""Rules for the whole code base: style, types, and imports that point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tools import lint

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nest_ssl"
MODULES = sorted(PACKAGE.rglob("*.py"))
CORE = ("model", "data", "config", "checkpoint", "training")
# part -> the parts that it may import (docs/architecture.md); a part that is not listed fails
MAY_IMPORT = {
    "moved": set(),
    "compat": set(),
    "errors": set(),
    "folder_lock": {"errors"},
    "atomic": {"folder_lock"},
    "regular_file": set(),
    "printable": set(),
    "shell": set(),
    "memory": set(),
    "threads": set(),
    "environments": {"errors", "folder_lock"},
    "model": {
        "errors",
        "compat",
        "memory",
        "config",
    },  # of config, only the modules in ONLY
    "data": {"errors", "compat", "folder_lock", "atomic", "printable", "regular_file", "shell", "config"},
    "config": {"errors", "compat", "moved", "regular_file", "shell", "checkpoint", "model"},
    "checkpoint": {"errors", "compat", "atomic", "regular_file", "config", "model"},
    "training": {
        *("errors", "compat", "folder_lock", "atomic", "regular_file", "printable", "shell"),
        *("model", "data", "config", "checkpoint", "models"),
    },
    "models": {"training"},
    "testing": {"data"},
    "__main__": {"cli"},
    # everything else is imported when a command runs, so that help appears at once
    "cli": {"errors", "printable", "threads"},
    "apps": {  # each may import the core and the other apps that APPS lists
        *("errors", "environments", "memory", "folder_lock", "atomic", "regular_file", "printable", "shell"),
        *("models", *CORE),
    },
}
# app -> the other apps that it builds on
APPS = {
    "alignment": {"pages"},
    "datatools": set(),
    "doctor": {"quiet"},
    "export": {"quiet"},
    "features": set(),
    "pages": set(),
    "probing": {"features"},
    "quiet": set(),
    "reference": {"alignment"},
    "report": {"pages"},
}
# part -> the only modules of another part that it may import
ONLY = {
    ("model", "config"): {"nest_ssl.config.targets", "nest_ssl.config.schema"},
    ("data", "config"): {"nest_ssl.config.targets", "nest_ssl.config.schema"},
}
# NeMo's environment loads it without the package around it: its modules import each other, and nothing else of ours
ALONE = "apps/alignment/recorder/"
# what a run on manifests with `exact`, from its first step and in one process, never loads
OTHER_LOADERS = tuple(f"nest_ssl.data.{name}" for name in ("lhotse", "tarred", "concat", "loading.buckets"))
OTHER_WAYS = ("nest_ssl.model.fast", "nest_ssl.training.fsdp", "nest_ssl.training.checkpointing.continuation")
_APPS = "nest_ssl.apps."
_SMALL = {"nest_ssl.errors", "nest_ssl.moved", "nest_ssl.compat"}  # modules that `import nest_ssl.model` may load, too


@pytest.mark.parametrize("check", lint.COMMANDS)
def test_passes(check: str) -> None:
    finished = lint.check(check)
    assert finished.returncode == 0, finished.stdout


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_one_way(module: Path) -> None:
    part = module.relative_to(PACKAGE).with_suffix("").parts[0]
    if part != "__init__":
        allowed = {"a relative import"} if _name(module).startswith(ALONE) else {part, *MAY_IMPORT[part]}
        imported = list(_imported(module, within_functions=part != "cli"))
        found = _parts(imported)
        assert found <= allowed
        for (importer, other), only in ONLY.items():
            if part == importer:
                assert {name for name in imported if name.startswith(f"nest_ssl.{other}")} <= only


@pytest.mark.parametrize("module", sorted((PACKAGE / "apps").rglob("*.py")), ids=lambda path: _name(path))
def test_an_app_knows_only_the_apps_that_it_builds_on(module: Path) -> None:
    app = module.relative_to(PACKAGE / "apps").with_suffix("").parts[0]
    if app != "__init__":
        apps = {name.split(".")[2] for name in _imported(module, within_functions=True) if name.startswith(_APPS)}
        assert apps <= {app, *APPS[app]}


@pytest.mark.parametrize("part", CORE)
def test_the_core_knows_no_app(part: str) -> None:
    for module in (PACKAGE / part).rglob("*.py"):
        assert not [name for name in _imported(module, within_functions=True) if name.startswith(_APPS)], module


@pytest.mark.parametrize(
    ("module", "foreign"),
    [
        ("nest_ssl", ("torch", "numpy", "lightning", "hydra", "omegaconf")),
        (
            "nest_ssl.model",
            ("lightning", "hydra", "omegaconf", "lhotse", "soundfile", "safetensors"),
        ),
        ("nest_ssl.model.nest", ("lightning", "hydra", "omegaconf", "lhotse", "soundfile", "safetensors")),
        ("nest_ssl.data", ("lightning", "hydra", "lhotse")),
        ("nest_ssl.data.loader", ("lightning", "hydra", "lhotse", *OTHER_LOADERS)),
        ("nest_ssl.checkpoint", ("lightning", "lhotse", "hydra", "nest_ssl.data", "nest_ssl.training")),
        ("nest_ssl.apps.features", ("lightning", "lhotse", "hydra", "nest_ssl.data", "nest_ssl.training")),
        ("nest_ssl.models", ("hydra", "lhotse", "nest_ssl.data.loader", "nest_ssl.data.dataset", *OTHER_WAYS)),
        ("nest_ssl.training.run", ("lhotse", *OTHER_LOADERS, *OTHER_WAYS)),
    ],
)
def test_importing_a_part_loads_nothing_that_it_does_not_need(module: str, foreign: tuple[str, ...]) -> None:
    code = f"import sys; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before), sep='\\n')"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(finished.stdout.split())
    own = {name for name in loaded if name.startswith("nest_ssl.")}
    if module == "nest_ssl.model":
        assert all(name.startswith("nest_ssl.model") or name in _SMALL for name in own), own
    assert not [name for name in loaded if any(name == one or name.startswith(f"{one}.") for one in foreign)]


def test_importing_the_package_takes_less_than_a_tenth_of_a_second() -> None:
    code = (
        "import sys, time; before, start = set(sys.modules), time.process_time(); import nest_ssl; "
        "print(time.process_time() - start, *(set(sys.modules) - before), sep='\\n')"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, *loaded = finished.stdout.split()
    assert float(seconds) < 0.1  # processor time, which other processes do not lengthen; it takes 0.02
    assert {name for name in loaded if name.startswith("nest_ssl")} == {"nest_ssl", "nest_ssl.moved"}
    assert not {name.split(".")[0] for name in loaded} - {"nest_ssl", *sys.stdlib_module_names}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_imports_nemo_on_load(module: Path) -> None:
    assert not [name for name in _imported(module) if name.split(".")[0] == "nemo"]


@pytest.mark.parametrize(
    ("code", "within_functions", "expected"),
    [
        (
            "try:\n    from nest_ssl.training import run\nfinally:\n    import nemo.core",
            False,
            "nest_ssl.training nemo.core",
        ),
        ("from nest_ssl import fast, __version__", False, "nest_ssl.fast nest_ssl.__version__"),
        ("from .training import run", False, ".training"),
        ("def late():\n    from nest_ssl import training", False, ""),
        ("def late():\n    from nest_ssl import training", True, "nest_ssl.training"),
        ("if TYPE_CHECKING:\n    import nemo\nelse:\n    import nest_ssl.data.audio", True, "nest_ssl.data.audio"),
    ],
)
def test_an_import_against_the_direction_is_noticed(
    code: str, within_functions: bool, expected: str, tmp_path: Path
) -> None:
    module = tmp_path / "backwards.py"
    module.write_text(code)
    assert list(_imported(module, within_functions=within_functions)) == expected.split()


def _name(module: Path) -> str:
    return module.relative_to(PACKAGE).as_posix()


def _parts(names: Iterable[str]) -> set[str]:
    """Return the parts of our package among imported modules; a relative import counts as one that is not allowed."""
    ours = [name for name in names if name.startswith(("nest_ssl.", ".")) and not name.endswith("__")]
    return {"a relative import" if name.startswith(".") else name.split(".")[1] for name in ours}


def _imported(module: Path, within_functions: bool = False) -> Iterator[str]:
    """Yield the modules that this one imports, without those for type checkers; imports within functions if asked."""
    waiting: list[ast.AST] = [ast.parse(module.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not within_functions:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            yield from (f"{source}.{alias.name}" for alias in node.names) if source == "nest_ssl" else [source]
        waiting.extend(ast.iter_child_nodes(node))
