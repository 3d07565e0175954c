#!/usr/bin/env python3
"""Trace a small training run and list the files that it really uses, in the order of their first call.

The table is written into docs/architecture.md. `--check` writes nothing and exits
with 1 if a run now uses other files, or the same ones in another order.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nest_ssl"
PAGE = ROOT / "docs" / "architecture.md"
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
    """A file of the package that a run called functions of."""

    path: str
    lines: int
    called_lines: int
    purpose: str

    def row(self, number: int) -> str:
        return f"| {number} | `{self.path}` | {self.lines} | {self.called_lines} | {self.purpose} |"


class CallTracer:
    """Remembers which functions of the package the main thread calls, in the order of their first call."""

    def __init__(self) -> None:
        self.called: dict[CodeType, None] = {}
        self._prefix = str(PACKAGE)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED  # not a class body
        if is_function and code.co_filename.startswith(self._prefix):
            self.called[code] = None

    def used_files(self) -> list[UsedFile]:
        first_lines: dict[str, set[int]] = {}
        for code in self.called:
            first_lines.setdefault(code.co_filename, set()).add(code.co_firstlineno)
        return [_used_file(Path(name), numbers) for name, numbers in first_lines.items()]


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
            sys.settrace(tracer)  # it returns None: lines are not traced
            try:
                exit_code = train(overrides, config_dir=ROOT / "config")
            finally:
                sys.settrace(None)
        checkpoints = list(Path(folder).rglob("*.ckpt"))
    if exit_code or not checkpoints:
        raise SystemExit(f"error: the run ended with {exit_code} and {len(checkpoints)} checkpoints\n{said.getvalue()}")
    return tracer.used_files()


def _used_file(path: Path, first_lines: set[int]) -> UsedFile:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    called = {line for lines in _functions(tree) if lines[0] in first_lines for line in lines}
    purpose = (ast.get_docstring(tree) or "").partition("\n")[0].replace("|", "\\|")
    return UsedFile(path.relative_to(ROOT).as_posix(), len(text.splitlines()), len(called), purpose)


def _functions(tree: ast.AST) -> Iterator[range]:
    """The lines of every function, its decorators among them: a code object begins with the first of these."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            yield range(start, (node.end_lineno or node.lineno) + 1)


def _table(files: list[UsedFile]) -> Iterator[str]:
    yield "| | File | Lines | Lines of called functions | What it is |"
    yield "|--:|---|--:|--:|---|"
    yield from (file.row(number) for number, file in enumerate(files, start=1))
    lines, called = sum(file.lines for file in files), sum(file.called_lines for file in files)
    yield f"| | {len(files)} files | {lines} | {called} | |"


def _compare(listed: list[str], found: list[str]) -> int:
    """Compare the files and their order, not their sizes: an edit within a file leaves the page up to date."""
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
