"""Set nest_ssl up and run it, given nothing but Python 3.10 or newer: `python start.py --help` explains.

Only the standard library and no shell, so that it works alike on Linux, Windows and macOS.
"""

# No `from __future__ import annotations` here: an older Python has to get as far as the message below.
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - the one file that an older Python may be asked to run
    sys.exit("nest_ssl needs Python 3.10 or newer, and this is {}.{}: use a newer one".format(*sys.version_info[:2]))

import difflib
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "constraints.txt"
DATA = ROOT / "data" / "dummy_ssl"
MANIFESTS = ("train_manifest.json", "val_manifest.json", "noise_manifest.json")
STAMP = "installed.json"  # in an environment: what was installed into it
UNFINISHED = "unfinished"  # in an environment that start.py is making: nothing in it can be relied on
TORCH = "2.13.0"
NEMO = {"3.0.0": "NEST_NEMO_PYTHON", "2.7.3": "NEST_NEMO_273_PYTHON"}  # version: the variable that names one's own
GIGABYTE = 10**9
NEEDED_SPACE = {"nest_ssl": 3 * GIGABYTE, "NeMo": 6 * GIGABYTE}

USAGE = """usage: python start.py [task] [arguments]

  python start.py               set up, then pre-train a small model on generated speech: about 3 minutes on 2 cores
  python start.py train ...     train.py with your arguments, e.g. model.train_ds.manifest_filepath=my.json
  python start.py test ...      run the tests (arguments go to pytest)
  python start.py parity ...    train NeMo and nest_ssl side by side, compare bit for bit (arguments go to pytest)
  python start.py setup         only set up

The first start makes .venv and installs into it; later ones begin at once. Paths are relative to this folder.
  NEST_NEMO_PYTHON       an interpreter that has NeMo 3.0.0, for parity
  NEST_NEMO_273_PYTHON   the same with NeMo 2.7.3; what neither names is installed once into a cache folder
  NEST_CACHE             that cache folder
pip's own settings apply, such as an extra index with CPU-only builds of torch (the usual ones for Linux bring CUDA).
"""


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


@dataclass
class Stamp:
    """What an environment holds: a digest of the inputs it was installed from, and the package's extras."""

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


def interpreter(folder: Path) -> Path:
    """The Python of a virtual environment."""
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def digest_of_inputs() -> str:
    """Changes when an installation made earlier no longer fits: other Python, other requirements, moved folder."""
    digest = hashlib.sha256(f"{platform.python_version()} {platform.platform()} {ROOT}".encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def project_python(*extras: str) -> Path:
    """The interpreter of `.venv` with nest_ssl in it, installed now if it is not there yet."""
    stamp, inputs = Stamp.read(VENV), digest_of_inputs()
    python = interpreter(VENV)
    if stamp.inputs == inputs and set(extras) <= set(stamp.extras) and python.exists():
        return python
    if (VENV / UNFINISHED).exists() or not has_pip(python):
        make_environment(VENV, NEEDED_SPACE["nest_ssl"])
    wanted = sorted({*extras, *stamp.extras})
    (VENV / STAMP).unlink(missing_ok=True)
    package = f".[{','.join(wanted)}]" if wanted else "."
    pip_install(python, ["-c", str(CONSTRAINTS), "-e", package], VENV / "install.log", "nest_ssl", "about 2 minutes")
    Stamp(inputs, wanted).write(VENV)
    (VENV / UNFINISHED).unlink(missing_ok=True)
    return python


def nemo_python(version: str) -> Path:
    """An interpreter that has this NeMo: the user's, or one of our own that all clones on this machine share."""
    variable = NEMO[version]
    chosen = os.environ.get(variable)
    if chosen:
        if not Path(chosen).is_file():
            raise SetupError(f"{variable} is {chosen!r}; expected the path of a Python that has NeMo {version}")
        return Path(chosen)
    python_version = "{}.{}".format(*sys.version_info[:2])
    folder = cache_folder() / f"nemo-{version}-torch-{TORCH}-py{python_version}"
    if not interpreter(folder).exists():
        make_nemo_environment(version, folder)
    return interpreter(folder)


def make_nemo_environment(version: str, folder: Path) -> None:
    """Install NeMo beside its final place and move it there when it is complete, so that nobody sees half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f"{folder.name}.*.partial"):
        if time.time() - leftover.stat().st_mtime > 24 * 3600:  # a run that was killed, not one that is at work
            shutil.rmtree(leftover, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        make_environment(partial, NEEDED_SPACE["NeMo"])
        packages = [f"torch=={TORCH}", f"nemo_toolkit[asr]=={version}"]
        log = folder.with_name(f"{folder.name}.log")
        pip_install(interpreter(partial), packages, log, f"NeMo {version} into {folder}", "about 5 minutes")
        (partial / UNFINISHED).unlink()
        partial.rename(folder)
    except OSError as error:
        if not interpreter(folder).exists():  # otherwise another start.py was faster, and its result serves as well
            raise SetupError(f"cannot make {folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cache_folder() -> Path:
    """Where this user's programs keep what can be made again."""
    if "NEST_CACHE" in os.environ:
        return Path(os.environ["NEST_CACHE"]).expanduser().resolve()
    home = Path.home()
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "nest_ssl" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "nest_ssl"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "nest_ssl"


def has_pip(python: Path) -> bool:
    """Whether an interpreter is there, starts and can install."""
    try:
        return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def make_environment(folder: Path, needed_space: int) -> None:
    """A new virtual environment in place of whatever is there, marked unfinished."""
    free = shutil.disk_usage(folder.parent).free
    if free < needed_space:
        raise SetupError(
            f"{folder.parent} has {free / GIGABYTE:.1f} GB free and installing needs about "
            f"{needed_space / GIGABYTE:.0f} GB: free some space, then run it again"
        )
    print(f"making {folder}", flush=True)
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / UNFINISHED).touch()
    except OSError as error:
        raise SetupError(f"cannot make {folder}: {error}") from error
    made = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True)
    if made.returncode:
        raise SetupError(
            f"cannot make {folder} with {sys.executable}:\n{indented((made.stdout + made.stderr).splitlines()[-12:])}\n"
            "Some systems package Python without venv: install it (Debian, Ubuntu: python3-venv), then run it again"
        )


def pip_install(python: Path, arguments: list[str], log: Path, what: str, duration: str) -> None:
    """Install quietly: one line for the user, everything pip says in a log, its end shown when it fails."""
    print(f"installing {what} (first time only, {duration}) ...", flush=True)
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command = [str(python), "-m", "pip", "install", *quiet, *arguments]
    lines: list[str] = []
    started = time.monotonic()
    pip = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with log.open("wb") as log_file, pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                log_file.write(line)
                lines.append(line.decode(errors="replace").rstrip())
                show_status(f"  {time.monotonic() - started:.0f} s  {lines[-1].strip()}")
        except BaseException:  # stopped by the user, say: pip must not go on alone
            pip.terminate()
            raise
    show_status("")
    if pip.returncode:
        raise SetupError(f"pip could not install {what}; the end of {log}:\n{indented(lines[-12:])}\n{advice(lines)}")
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)


def show_status(text: str) -> None:
    """One line that the next one replaces; nothing where nobody watches."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print("\r" + text[:width].ljust(width) + ("" if text else "\r"), end="", flush=True)


def advice(lines: Iterable[str]) -> str:
    """What to do about a failure of pip, as far as its output tells."""
    output = "\n".join(lines)
    if any(sign in output for sign in ("No space left", "Errno 28", "not enough space")):
        return "The disk is full: free some space, then run it again"
    network = ("NewConnectionError", "name resolution", "getaddrinfo", "Max retries", "timed out", "ProxyError")
    if any(sign in output for sign in network):
        return "The network cannot be reached: check it, and pip's proxy and index settings, then run it again"
    if "(from versions: none)" in output:
        return "pip found nothing at all: check the network, and pip's proxy and index settings, then run it again"
    if "No matching distribution" in output:
        return f"pip's index has no such version for Python {platform.python_version()} on {platform.platform()}"
    return "Run it again once this is solved: it continues by itself"


def indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def run(python: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> int:
    """Run a program of the project to its end, and its exit code.

    Ctrl-C reaches the program as well, and a termination is handed on: either way it ends by itself, and we wait.
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
    """The interpreter of `.venv`, everything installed, and the dummy data made."""
    python = project_python(*extras)
    if not all((DATA / name).is_file() for name in MANIFESTS) and run(python, "tools/prepare_dummy_ssl_data.py"):
        raise SetupError(f"the dummy data could not be made in {DATA}: see the message above")
    return python


def demo(arguments: list[str]) -> int:
    code = run(set_up(), "train.py", "--config-name", "nest_tiny", *arguments)
    if code == 0 and Path(sys.prefix) != VENV:
        activate = r".venv\Scripts\activate" if os.name == "nt" else "source .venv/bin/activate"
        print(f"before you type these commands, once in each terminal: {activate}")
    return code


def train(arguments: list[str]) -> int:
    return run(set_up(), "train.py", *arguments)


def test(arguments: list[str]) -> int:
    return run(set_up("dev"), "-m", "pytest", *arguments)


def parity(arguments: list[str]) -> int:
    python = set_up("dev")
    interpreters = {variable: str(nemo_python(version)) for version, variable in NEMO.items()}
    return run(python, "-m", "pytest", "tests/parity", *arguments, environment=interpreters)


def setup(arguments: list[str]) -> int:
    print(f"ready: {set_up()}")
    return 0


TASKS = {"demo": demo, "train": train, "test": test, "parity": parity, "setup": setup}


def main(arguments: list[str]) -> int:
    task, *rest = arguments or ["demo"]
    if task in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if task not in TASKS:
        close = difflib.get_close_matches(task, TASKS, n=1)
        suggestion = f" (did you mean {close[0]!r}?)" if close else ""
        print(f"start.py has no task {task!r}{suggestion}: python start.py --help lists them", file=sys.stderr)
        return 2
    try:
        return TASKS[task](rest)
    except (SetupError, OSError) as error:
        print(f"start.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of an exception, so that what was begun is ended
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
