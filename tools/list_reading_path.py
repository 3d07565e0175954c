#!/usr/bin/env python3
"""Trace a small training run and list the files whose functions it calls, in the order of their first call.

Two tables are written into docs/architecture.md: files that decide what the run computes, and files that check, watch,
report and save. `--check` writes nothing and exits with 1 if a run now uses other files, or another order of them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nest_ssl"
PAGE = ROOT / "docs" / "architecture.md"
# Files that a run calls although the trained weights would be the same without them
AROUND = (
    *("atomic", "compat", "folder_lock", "memory", "moved", "printable", "regular_file", "shell"),
    *("checkpoint/config", "config/foreign_yaml", "config/schema/tree"),
    *("data/audio/opening", "data/problems"),
    *("data/inspection/", "model/agreement", "model/size"),
    *("training/advice", "training/callbacks/", "training/checks", "training/console", "training/experiment"),
    *("training/checkpointing/checkpoint", "training/checkpointing/run_record", "training/loggers/"),
    "training/run_folder",
)
BEGIN, END = "<!-- reading path: begin -->", "<!-- reading path: end -->"
sys.path.insert(0, str(ROOT))  # also works where the package is not installed

try:
    from nest_ssl.data.dummy import make_dummy_corpus
    from nest_ssl.testing import manifests_of
    from nest_ssl.training.run import main as train
except ModuleNotFoundError as error:
    print(
        f"error: {error.name} is not installed here; activate .venv first (python start.py makes it)", file=sys.stderr
    )
    sys.exit(2)


@dataclass(frozen=True)
class UsedFile:
    """A file of the package whose functions a run called."""

    path: str
    lines: int
    called_lines: int  # lines of the called functions
    run_lines: int  # those of them that ran, without docstrings, comments and empty lines
    purpose: str

    @property
    def is_around(self) -> bool:
        return self.path.removeprefix("nest_ssl/").removesuffix(".py").startswith(AROUND)

    def row(self, number: int) -> str:
        return f"| {number} | `{self.path}` | {self.called_lines} | {self.run_lines} | {self.purpose} |"


class CallTracer:
    """Records which functions and lines of the package the main thread runs, in the order of the first calls."""

    def __init__(self) -> None:
        self.called: dict[CodeType, set[int]] = {}
        self._prefix = str(PACKAGE)

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED  # not a class body
        if not is_function or not code.co_filename.startswith(self._prefix):
            return None
        lines = self.called.setdefault(code, set())
        lines.add(frame.f_lineno)

        def follow(frame: FrameType, event: str, argument: object) -> Any:
            lines.add(frame.f_lineno)
            return follow

        return follow

    def used_files(self) -> list[UsedFile]:
        first_lines: dict[str, set[int]] = {}
        run_lines: dict[str, set[int]] = {}
        for code, lines in self.called.items():
            first_lines.setdefault(code.co_filename, set()).add(code.co_firstlineno)
            run_lines.setdefault(code.co_filename, set()).update(lines)
        files = [_used_file(Path(name), first_lines[name], run_lines[name]) for name in first_lines]
        return sorted(files, key=lambda file: file.is_around)  # otherwise in the order of their first call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether the page is up to date")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    if not rest or END not in rest:
        print(f"error: {PAGE}: has no lines {BEGIN} and {END}", file=sys.stderr)
        return 2
    files = trace_training()
    if arguments.check:
        return _compare(re.findall(r"^\| \d+ \| `([^`]+)` \|", table, re.M), [file.path for file in files])
    made = "".join(f"{line}\n" for line in _table(files))
    PAGE.write_text(f"{before}{BEGIN}\n{made}{END}{after}", encoding="utf-8")
    print(f"wrote {len(files)} files into {PAGE}")
    return 0


def trace_training() -> list[UsedFile]:
    """Train the model of config/nest_tiny.yaml for four steps, with a validation and a checkpoint at their end."""
    tracer, said = CallTracer(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            *("--config-name", "nest_tiny", f"exp_manager.exp_dir={folder}/runs"),
            *manifests_of(make_dummy_corpus(Path(folder) / "data", train=16, val=4, noise=2)),
            *("trainer.max_epochs=1", "trainer.accelerator=cpu", "trainer.devices=1"),
            *("model.train_ds.num_workers=0", "model.validation_ds.num_workers=0"),  # all calls in this process
        ]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            sys.settrace(tracer)
            try:
                exit_code = train(overrides, config_dir=ROOT / "config")
            finally:
                sys.settrace(None)
        checkpoints = list(Path(folder).rglob("*.ckpt"))
    if exit_code or not checkpoints:
        raise SystemExit(f"error: the run ended with {exit_code} and {len(checkpoints)} checkpoints\n{said.getvalue()}")
    return tracer.used_files()


def _used_file(path: Path, first_lines: set[int], run_lines: set[int]) -> UsedFile:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    called = {line for lines in _functions(tree) if lines[0] in first_lines for line in lines}
    run = run_lines.union(*(lines for lines in _statements(tree) if not run_lines.isdisjoint(lines)))
    purpose = (ast.get_docstring(tree) or "").partition("\n")[0].replace("|", "\\|")
    return UsedFile(path.relative_to(ROOT).as_posix(), len(text.splitlines()), len(called), len(run & called), purpose)


def _statements(tree: ast.AST) -> Iterator[range]:
    """Yield the lines of every simple statement, and of the header of every compound one, such as `with ...:`."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list):
            yield range(node.lineno, max(node.lineno + 1, body[0].lineno))
        elif isinstance(node, ast.stmt):
            yield range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _functions(tree: ast.AST) -> Iterator[range]:
    """Yield the lines of every function with its decorators, because a code object begins at the first decorator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            yield range(start, (node.end_lineno or node.lineno) + 1)


def _table(files: list[UsedFile]) -> Iterator[str]:
    decisive = [file for file in files if not file.is_around]
    yield from _rows("decide what the run computes", decisive, first=1)
    yield from ("",)
    yield from _rows("check, watch, report or save", files[len(decisive) :], first=len(decisive) + 1)
    yield from ("",)
    called, run = sum(file.called_lines for file in files), sum(file.run_lines for file in files)
    yield f"Together: {len(files)} files of {sum(file.lines for file in files):,} lines; {called:,} lines of the called"
    yield f"functions, of which {run:,} ran."


def _rows(what: str, files: list[UsedFile], first: int) -> Iterator[str]:
    yield f"| | Files that {what} | Lines of called functions | Lines that ran | What it is |"
    yield "|--:|---|--:|--:|---|"
    yield from (file.row(number) for number, file in enumerate(files, start=first))
    called, run = sum(file.called_lines for file in files), sum(file.run_lines for file in files)
    yield f"| | **{len(files)} files** | **{called:,}** | **{run:,}** | |"


def _compare(listed: list[str], found: list[str]) -> int:
    """Compare the files and their order, but not their sizes: the page stays valid after an edit within a file."""
    if listed == found:
        return 0
    print(f"{PAGE} is out of date; type: python tools/list_reading_path.py", file=sys.stderr)
    for sign, some, others in (("-", listed, found), ("+", found, listed)):
        for path in some:
            if path not in others:
                print(f"{sign} {path}", file=sys.stderr)
    if sorted(listed) == sorted(found):
        print("the same files are called in another order", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
