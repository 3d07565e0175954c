"""Only the safe readers load files of other people: no other code in the package does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import nest_ssl

PACKAGE = Path(nest_ssl.__file__).parent
# Functions that make objects from bytes, by the last part of their names, and the files that may call them.
ALLOWED: dict[str, set[str]] = {
    "torch.load": {"checkpoint/weights.py"},
    "torch.jit.load": set(),
    "torch.package": set(),
    "torch.hub": set(),
    "torch.export.load": {"apps/export/formats.py"},  # loads its own export, to compare it
    "pickle.load": set(),
    "pickle.loads": set(),
    "pickle.Unpickler": set(),
    "pickle._Unpickler": {"compat.py"},
    "nest_ssl.compat.python_unpickler": {"checkpoint/inspection.py"},
    "marshal.loads": set(),
    "shelve.open": set(),
    "joblib.load": set(),
    "yaml.load": {"apps/pages/text.py"},  # the package's own texts, with a safe loader
    "yaml.unsafe_load": set(),
    "yaml.full_load": set(),
}
NUMPY = "np.load"  # allowed everywhere if it does not unpickle


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def uses() -> Iterator[tuple[str, str, ast.AST]]:
    """Yield the module, the dotted name and the position of every name that the package uses."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                yield module, dotted(node), node
            elif isinstance(node, ast.ImportFrom):
                yield from ((module, f"{node.module}.{alias.name}", node) for alias in node.names)


def test_nothing_but_the_safe_reader_loads_objects() -> None:
    found: dict[str, set[str]] = {name: set() for name in ALLOWED}
    for module, name, _ in uses():
        if name in ALLOWED:
            found[name].add(module)
    assert found == ALLOWED


def test_numpy_never_unpickles() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path


def test_every_trainer_of_ours_reads_checkpoints_safely() -> None:
    """Lightning's own reader trusts files; with our plugin, `trainer.fit(ckpt_path)` does not use it."""
    calls = {
        module: ast.unparse(node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for module in [path.relative_to(PACKAGE).as_posix()]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and dotted(node.func).endswith(("pl.Trainer", "Trainer.fit"))
    }
    assert "plugins=[files]" in calls.pop("training/trainer.py")
    # The recorder runs in NeMo's environment.
    assert set(calls) <= {"apps/alignment/nemo_side.py"}
