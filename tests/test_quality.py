"""What the whole code base keeps to: style, types, and imports that point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nest_ssl"
MODULES = sorted(PACKAGE.rglob("*.py"))
# part -> the parts it may know (docs/architecture.md); what is not listed here fails, so that a new part is placed too
MAY_IMPORT = {
    "errors": set(),
    "atomic": set(),
    "presets": set(),
    "quiet": set(),
    "environments": {"errors"},
    "targets": {"errors"},
    "audio": {"errors"},
    "data": {"errors", "targets", "atomic", "audio"},
    "features": {"errors"},
    "modules": {"errors"},
    "losses": {"errors"},
    "optim": {"errors"},
    "fast": {"features", "modules"},
    "models": {"errors", "targets", "data", "features", "modules", "losses", "optim", "fast"},
    "checkpoint": {"errors", "targets", "atomic", "models"},
    "encoding": {"errors", "atomic", "audio", "data", "fast", "models", "modules", "checkpoint"},
    "probing": {"errors", "audio", "data", "checkpoint", "encoding"},
    "training": {
        *("errors", "targets", "atomic", "data", "features", "modules", "losses", "optim", "models", "checkpoint")
    },
    "export": {"quiet", "errors", "atomic", "features", "modules", "models", "checkpoint"},
    "testing": {"errors", "data"},
    "pages": {"atomic"},
    "alignment": {"errors", "environments", "data", "models", "checkpoint", "training", "pages"},  # for commands
    "report": {"errors", "data", "training", "pages"},  # for commands
    "doctor": {"quiet", "errors", "environments", "audio", "data", "models", "optim", "training"},  # for commands
    "reference": {  # for a tool alone
        *("errors", "targets", "atomic", "presets", "data", "optim", "models", "checkpoint", "training", "alignment")
    },
    "__main__": {"cli"},
    "cli": set(),  # imports when a command runs: help must appear at once
}


@pytest.mark.parametrize(
    "command", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]], ids=" ".join
)
def test_passes(command: list[str]) -> None:
    finished = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_one_way(module: Path) -> None:
    part = module.relative_to(PACKAGE).with_suffix("").parts[0]
    known = {name.split(".")[1] for name in _imported_on_load(module) if name.startswith("nest_ssl.")}
    assert part == "__init__" or known <= MAY_IMPORT[part] | {part}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_imports_nemo_on_load(module: Path) -> None:
    assert not [name for name in _imported_on_load(module) if name.split(".")[0] == "nemo"]


def test_an_import_against_the_direction_is_noticed(tmp_path: Path) -> None:
    module = tmp_path / "backwards.py"
    module.write_text("try:\n    from nest_ssl.training import run\nfinally:\n    import nemo.core\n")
    assert list(_imported_on_load(module)) == ["nest_ssl.training", "nemo.core"]


def _imported_on_load(module: Path) -> Iterator[str]:
    """The modules that importing this one imports; imports inside functions and for type checkers do not count."""
    waiting: list[ast.AST] = [ast.parse(module.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        waiting.extend(ast.iter_child_nodes(node))
