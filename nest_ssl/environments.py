"""Virtual environments: `.venv` of start.py and those with NeMo, each created once and kept.

Standard library only, because start.py uses it before anything is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from nest_ssl.errors import NestError
from nest_ssl.folder_lock import lock_file

TORCH = "2.13.0"  # parity needs this version on both sides
NEMO = {
    "3.0.0": "NEST_NEMO_PYTHON",
    "2.7.3": "NEST_NEMO_273_PYTHON",
}  # version: the variable with the user's own interpreter
NEWEST_NEMO = "3.0.0"  # the version that nest_ssl agrees with bit by bit
UNFINISHED = "unfinished"  # marker in an environment whose creation is not finished
GIGABYTE = 10**9
NEMO_SPACE = 6 * GIGABYTE


class SetupError(NestError):
    """Set-up failed; the message says why and what to do."""


def interpreter(folder: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def nemo_python(version: str) -> Path:
    """Return an interpreter with this NeMo: the user's, or that of our environment, created if missing."""
    variable = NEMO[version]
    chosen = os.environ.get(variable)
    if chosen:
        if not Path(chosen).is_file():
            raise SetupError(f"{variable} is {chosen!r}; expected the path of a Python that has NeMo {version}")
        return Path(chosen)
    folder = nemo_folder(version)
    if not interpreter(folder).exists():
        with one_at_a_time(folder):
            if not interpreter(folder).exists():  # another process may have created it meanwhile
                make_nemo_environment(version, folder)
    return interpreter(folder)


def installed_nemo() -> Path | None:
    """Return an existing interpreter with NeMo, or None: the user's, this one, or that of our environment."""
    variable = NEMO[NEWEST_NEMO]
    if variable in os.environ:
        return nemo_python(NEWEST_NEMO)
    if importlib.util.find_spec("nemo"):
        return Path(sys.executable)
    own = interpreter(nemo_folder(NEWEST_NEMO))
    return own if own.exists() else None


def nemo_folder(version: str) -> Path:
    """Return the folder of our environment with this NeMo, which all clones of this user share."""
    return cache_folder() / "nemo-{}-torch-{}-py{}.{}".format(version, TORCH, *sys.version_info[:2])


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock the creation of an environment within the block; wait, with a message, if another process holds the lock."""

    def tell(who: str) -> None:
        print(f"waiting for {who}, which is making {folder}", flush=True)

    with lock_file(folder.with_name(f".{folder.name.lstrip('.')}.lock"), "wait for its end", tell):
        yield


def make_nemo_environment(version: str, folder: Path) -> None:
    """Install NeMo into a temporary folder and rename it when complete, so that no incomplete environment is used."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f"{folder.name}.*.partial"):  # of killed processes: this one holds the lock
        shutil.rmtree(leftover, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        make_environment(partial, NEMO_SPACE)
        packages = [f"torch=={TORCH}", f"nemo_toolkit[asr]=={version}"]
        log = folder.with_name(f"{folder.name}.log")
        pip_install(interpreter(partial), packages, log, f"NeMo {version} into {folder}", "about 5 minutes")
        (partial / UNFINISHED).unlink()
        partial.rename(folder)
    except OSError as error:
        if not interpreter(folder).exists():  # otherwise another start.py created it
            raise SetupError(f"cannot make {folder}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cache_folder() -> Path:
    """Return this user's cache folder for nest_ssl."""
    if "NEST_CACHE" in os.environ:
        return Path(os.environ["NEST_CACHE"]).expanduser().resolve()
    home = Path.home()
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "nest_ssl" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "nest_ssl"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "nest_ssl"


def has_pip(python: Path) -> bool:
    """Return whether an interpreter exists, starts, and has pip."""
    try:
        return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def make_environment(folder: Path, needed_space: int) -> None:
    """Create a virtual environment, marked unfinished; an existing folder is replaced."""
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


def pip_install(
    python: Path, arguments: list[str], log: Path, what: str, duration: str, folder: Path | None = None
) -> None:
    """Install quietly: print one line, write pip's output into a log, and show its end if pip fails."""
    print(f"installing {what} (first time only, {duration}) ...", flush=True)
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command = [str(python), "-m", "pip", "install", *quiet, *arguments]
    lines: list[str] = []
    started = time.monotonic()
    pip = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with log.open("wb") as log_file, pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                log_file.write(line)
                lines.append(line.decode(errors="replace").rstrip())
                show_status(f"  {time.monotonic() - started:.0f} s  {lines[-1].strip()}")
        except BaseException:  # such as Ctrl-C: pip must not continue alone
            pip.terminate()
            raise
    show_status("")
    if pip.returncode:
        raise SetupError(f"pip could not install {what}; the end of {log}:\n{indented(lines[-12:])}\n{advice(lines)}")
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)


def show_status(text: str) -> None:
    """Show one line that the next call replaces; on a terminal only."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print("\r" + text[:width].ljust(width) + ("" if text else "\r"), end="", flush=True)


def advice(lines: Iterable[str]) -> str:
    """Return what to do about a failure of pip, judged by its output."""
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
