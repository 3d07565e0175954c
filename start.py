"""Install nest_ssl and run it, with nothing but Python 3.10 to 3.13: see `python start.py --help`.

It uses the standard library and no shell, so that it works in the same way on Linux, Windows and macOS.
"""

# No `from __future__ import annotations` here: an older Python has to get as far as the message below.
import sys

if not (3, 10) <= sys.version_info[:2] <= (3, 13):  # as in constraints.txt and pyproject.toml
    sys.stderr.write(
        "nest_ssl needs Python {}, and this is {}.{}: install one, then {} start.py\n".format(
            "3.10 or newer" if sys.version_info < (3, 10) else "3.13 or older",
            *sys.version_info[:2],
            "py -3.13" if sys.platform == "win32" else "python3.13",
        )
    )
    sys.exit(2)

import difflib
import hashlib
import json
import os
import platform
import signal
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nest_ssl.environments import (
    GIGABYTE,
    NEMO,
    UNFINISHED,
    SetupError,
    has_pip,
    interpreter,
    make_environment,
    nemo_python,
    one_at_a_time,
    pip_install,
)
from nest_ssl.errors import FAILED

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "constraints.txt"
DATA = ROOT / "data" / "dummy_ssl"
MANIFESTS = ("train_manifest.json", "val_manifest.json", "noise_manifest.json")
STAMP, LOG = "installed.json", "install.log"  # in an environment: what was installed into it, what pip said
NEEDED_SPACE = 3 * GIGABYTE
MOST_TEST_PROCESSES = 4  # each holds torch and its models: 2 GB; one more than cores, as many tests wait for programs

USAGE = """usage: python start.py [task] [arguments]

  python start.py               set up, then pre-train a small model on generated speech: about 3 minutes on 2 cores
  python start.py train ...     train.py with your arguments, for example
      python start.py train model.train_ds.manifest_filepath=train.json model.validation_ds.manifest_filepath=val.json
  python start.py align ...     train NeMo and nest_ssl side by side, write a report (nest-ssl align --help)
  python start.py test ...      run the quick tests, which cover every part: about 6 minutes (arguments go to pytest)
  python start.py test --all    run every test, also those that kill runs, start several processes or open a browser
  python start.py lint          check style, types and the files that follow a schema
  python start.py parity ...    the same for every option there is, as a test suite (arguments go to pytest)
  python start.py bench ...     measure both side by side, write docs/benchmarks.md (--help; --quick: minutes)
  python start.py soak ...      train for hours and watch that nothing grows (--hours 2)
  python start.py setup         only set up

The first start makes .venv and installs into it; later ones begin at once. Paths are relative to this folder.
  NEST_NEMO_PYTHON       an interpreter that has NeMo 3.0.0, for align, parity and bench
  NEST_NEMO_273_PYTHON   the same with NeMo 2.7.3; what neither names is installed once into a cache folder
  NEST_CACHE             that cache folder
pip's own settings apply, such as an extra index with CPU-only builds of torch (the usual ones for Linux bring CUDA).
"""


@dataclass
class Stamp:
    """The record of an installation: a digest of the inputs, and the extras of the package."""

    inputs: str = ""
    extras: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "Stamp":
        try:
            return cls(**json.loads((folder / STAMP).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()

    def write(self, folder: Path) -> None:
        (folder / STAMP).write_text(json.dumps(asdict(self)), encoding="utf-8")


def digest_of_inputs() -> str:
    """Return a digest that changes when an installation is outdated: other Python, other requirements, moved folder."""
    digest = hashlib.sha256(f"{platform.python_version()} {platform.platform()} {ROOT}".encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def project_python(*extras: str) -> Path:
    """Return the interpreter of `.venv`, after installing nest_ssl into it if needed."""
    if not is_installed(extras):
        with one_at_a_time(VENV):
            if not is_installed(extras):  # another process may have installed it meanwhile
                install(extras)
    return interpreter(VENV)


def is_installed(extras: Collection[str]) -> bool:
    """Return whether .venv has everything that is needed."""
    stamp = Stamp.read(VENV)
    return stamp.inputs == digest_of_inputs() and set(extras) <= set(stamp.extras) and interpreter(VENV).exists()


def install(extras: Collection[str]) -> None:
    """Create .venv unless it exists and works, and install nest_ssl into it."""
    stamp, inputs, python = Stamp.read(VENV), digest_of_inputs(), interpreter(VENV)
    if (VENV / UNFINISHED).exists() or not has_pip(python):
        refuse_foreign_environment()
        make_environment(VENV, NEEDED_SPACE)
    wanted = sorted({*extras, *stamp.extras})
    (VENV / STAMP).unlink(missing_ok=True)
    package = f".[{','.join(wanted)}]" if wanted else "."
    arguments = ["-c", str(CONSTRAINTS), "-e", package]
    pip_install(python, arguments, VENV / LOG, "nest_ssl", "about 2 minutes", folder=ROOT)
    Stamp(inputs, wanted).write(VENV)
    (VENV / UNFINISHED).unlink(missing_ok=True)


def refuse_foreign_environment() -> None:
    """Raise an error if .venv belongs to the user and cannot be used, instead of removing it."""
    ours = any((VENV / name).exists() for name in (UNFINISHED, STAMP, LOG))
    if not ours and VENV.exists() and any(VENV.iterdir()):
        raise SetupError(f"{VENV} was not made by start.py and has no pip: move it, or install pip into it")


def run(python: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> int:
    """Run a program of the project to its end and return its exit code.

    Ctrl-C reaches the program too, and SIGTERM is forwarded: in both cases it ends by itself, and this function waits.
    """
    with subprocess.Popen([str(python), *arguments], cwd=ROOT, env={**os.environ, **(environment or {})}) as process:
        previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            while True:
                try:
                    code = process.wait()
                except KeyboardInterrupt:
                    continue
                return code if code >= 0 else 128 - code
        finally:
            signal.signal(signal.SIGTERM, previous)


def set_up(*extras: str) -> Path:
    """Return the interpreter of `.venv`, after installing everything and creating the dummy data."""
    python = project_python(*extras)
    if not all((DATA / name).is_file() for name in MANIFESTS) and run(python, "tools/prepare_dummy_ssl_data.py"):
        raise SetupError(f"the dummy data could not be made in {DATA}: see the message above")
    return python


def demo(arguments: list[str]) -> int:
    return train(["--config-name", "nest_tiny", *arguments])


def train(arguments: list[str]) -> int:
    """Train, then say how to activate .venv for the commands that a finished run prints."""
    code = run(set_up(), "train.py", *arguments)
    if code == 0 and Path(sys.prefix) != VENV and not {"-h", "--help"} & set(arguments):
        activate = r".venv\Scripts\activate" if os.name == "nt" else "source .venv/bin/activate"
        print(f"before you type these commands, once in each terminal: {activate}")
    return code


def test(arguments: list[str]) -> int:
    """Run the quick tests; with `--all`, or where the arguments choose tests themselves, whatever they choose.

    Test files are shared out among processes; an `-n` in the arguments says among how many.
    """
    every = "--all" in arguments
    chosen = [argument for argument in arguments if argument != "--all"]
    quick = [] if every or any(argument == "-m" or "::" in argument for argument in chosen) else ["-m", "not slow"]
    processes = min((os.cpu_count() or 1) + 1, MOST_TEST_PROCESSES)
    shared_out = ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]  # slow files first: conftest.py
    # threads that spin while they wait would take the cores from the other test processes
    waiting = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    return run(set_up("dev"), "-m", "pytest", *shared_out, *quick, *chosen, environment=waiting)


def lint(arguments: list[str]) -> int:
    return run(set_up("dev"), "tools/lint.py", *arguments)


def align(arguments: list[str]) -> int:
    return run(set_up(), "-m", "nest_ssl", "align", *arguments)


def parity(arguments: list[str]) -> int:
    python = set_up("dev")
    interpreters = {variable: str(nemo_python(version)) for version, variable in NEMO.items()}
    return run(python, "-m", "pytest", "tests/parity", *arguments, environment=interpreters)


def bench(arguments: list[str]) -> int:
    return run(project_python(), "-m", "benchmarks.run", *arguments)


def soak(arguments: list[str]) -> int:
    return run(set_up(), "-m", "benchmarks.soak", *arguments)


def setup(arguments: list[str]) -> int:
    print(f"ready: {set_up()}")
    return 0


TASKS = {
    "demo": demo,
    "train": train,
    "align": align,
    "test": test,
    "lint": lint,
    "parity": parity,
    "bench": bench,
    "soak": soak,
    "setup": setup,
}


def main(arguments: list[str]) -> int:
    task, *rest = arguments or ["demo"]
    if task in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if task not in TASKS:
        close = difflib.get_close_matches(task, TASKS, n=1)
        suggestion = f" (did you mean {close[0]!r}?)" if close else ""
        print(f"start.py has no task {task!r}{suggestion}: python start.py --help lists them", file=sys.stderr)
        return FAILED
    try:
        return TASKS[task](rest)
    except (SetupError, OSError) as error:
        print(f"start.py: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that started programs are ended
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
