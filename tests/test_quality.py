"""What the whole code base keeps to: style, types, and imports that point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nest_ssl"
MODULES = sorted(PACKAGE.rglob("*.py"))
# part -> the parts it may know (docs/architecture.md); what is not listed here fails, so that a new part is placed too
MAY_IMPORT = {
    "errors": set(),
    "exit_codes": set(),
    "folder_lock": {"errors"},
    "atomic": {"folder_lock"},
    "regular_file": set(),
    "printable": set(),
    "shell": set(),
    "presets": set(),
    "quiet": set(),
    "memory": set(),
    "environments": {"errors", "folder_lock"},
    "targets": {"errors"},
    "audio": {"errors", "atomic", "regular_file"},
    "data": {"errors", "targets", "folder_lock", "atomic", "printable", "regular_file", "shell", "audio"},
    "features": {"errors"},
    "modules": {"errors"},
    "losses": {"errors"},
    "optim": {"errors"},
    "fast": {"features", "modules"},
    "models": {"errors", "memory", "targets", "data", "features", "modules", "losses", "optim", "fast"},
    "checkpoint": {"errors", "targets", "atomic", "regular_file", "models"},
    "encoding": {
        *("errors", "folder_lock", "atomic", "regular_file", "audio", "data", "fast", "models", "modules", "checkpoint")
    },
    "probing": {"errors", "regular_file", "audio", "data", "checkpoint", "encoding"},
    "training": {
        "exit_codes",
        *("errors", "targets", "atomic", "regular_file", "data", "features", "modules", "losses", "optim", "models"),
        *("folder_lock", "checkpoint", "printable", "shell"),
    },
    "export": {
        *("quiet", "errors", "folder_lock", "atomic", "regular_file", "features", "modules", "models", "checkpoint")
    },
    "testing": {"errors", "data"},
    "pages": {"atomic"},
    "alignment": {  # for commands
        *("atomic", "regular_file", "errors", "environments", "presets", "data", "models", "checkpoint", "training"),
        *("folder_lock", "pages", "printable"),
    },
    "report": {"errors", "regular_file", "data", "checkpoint", "training", "pages"},  # for commands
    "doctor": {  # for commands
        *("quiet", "memory", "errors", "environments", "regular_file", "audio", "data", "models", "optim", "training"),
        "shell",
    },
    "reference": {  # for a tool alone
        *("errors", "targets", "atomic", "presets", "data", "optim", "models", "checkpoint", "training", "alignment")
    },
    "__main__": {"cli"},
    "cli": {"exit_codes", "printable"},  # all else when a command runs: help must appear at once
}
# module -> what it imports against the direction, in functions: save_to and restore_from are NeMo's methods of a model
AGAINST = {"models/ssl.py": {"checkpoint"}}
# NeMo's environment loads it without the package around it: its modules import each other, and nothing else of ours
ALONE = "alignment/recorder/"


@pytest.mark.parametrize(
    "command", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]], ids=" ".join
)
def test_passes(command: list[str]) -> None:
    tool = [sys.executable, "-I", "-m", *command]  # by itself, also where the suite runs as elsewhere (tests/elsewhere)
    finished = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_one_way(module: Path) -> None:
    part = module.relative_to(PACKAGE).with_suffix("").parts[0]
    if part != "__init__":
        allowed = {"a relative import"} if _name(module).startswith(ALONE) else {part, *MAY_IMPORT[part]}
        found = _parts(_imported(module, within_functions=part != "cli"))
        assert found - AGAINST.get(_name(module), set()) <= allowed


@pytest.mark.parametrize("module", AGAINST)
def test_the_exceptions_are_within_functions_and_still_there(module: str) -> None:
    on_load, ever = (_parts(_imported(PACKAGE / module, within_functions=within)) for within in (False, True))
    assert AGAINST[module] <= ever - on_load


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
        ("if TYPE_CHECKING:\n    import nemo\nelse:\n    import nest_ssl.audio", True, "nest_ssl.audio"),
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
    """The parts of our package among imported modules; a relative import is none, and so against the rule."""
    ours = [name for name in names if name.startswith(("nest_ssl.", ".")) and not name.endswith("__")]
    return {"a relative import" if name.startswith(".") else name.split(".")[1] for name in ours}


def _imported(module: Path, within_functions: bool = False) -> Iterator[str]:
    """The modules that importing this one imports, or that its functions do as well; not those for type checkers."""
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
