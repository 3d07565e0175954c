"""start.py sets up once, recovers from interruptions, and explains failures."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

import start
from nest_ssl import environments
from tests.waiting import PATIENCE

OTHER_PYTHON = "import runpy, sys; sys.version_info = {version}; runpy.run_path({path!r}, run_name='__main__')"

PROJECT = start.ROOT / "pyproject.toml"
DECLARED = re.findall(r"Python :: (3\.\d+)", PROJECT.read_text(encoding="utf-8"))
EVERYWHERE = Marker("python_version > '3'")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an environment folder; packages are not installed, but listed in `pip.txt`."""
    (tmp_path / "pyproject.toml").write_text("[project]")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0")
    for name, path in (("ROOT", ""), ("VENV", ".venv"), ("CONSTRAINTS", "constraints.txt"), ("DATA", "data")):
        monkeypatch.setattr(start, name, tmp_path / path)

    def note(
        python: Path, arguments: list[str], log: Path, what: str, duration: str, folder: Path | None = None
    ) -> None:
        with (tmp_path / "pip.txt").open("a") as file:
            file.write(arguments[-1] + "\n")

    def make(folder: Path, needed_space: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        start.interpreter(folder).parent.mkdir(parents=True)
        start.interpreter(folder).touch()
        (folder / start.UNFINISHED).touch()

    for module in (start, environments):
        monkeypatch.setattr(module, "pip_install", note)
        monkeypatch.setattr(module, "make_environment", make)
        monkeypatch.setattr(module, "has_pip", lambda python: python.exists())
    return tmp_path


def _installed(project: Path) -> list[str]:
    return (project / "pip.txt").read_text().split()


def test_second_start_installs_nothing(project: Path) -> None:
    first = start.project_python()
    assert start.project_python() == first == start.interpreter(project / ".venv")
    assert _installed(project) == ["."]


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed(project: Path, changed: str) -> None:
    start.project_python()
    (project / changed).write_text("other")
    start.project_python()
    assert _installed(project) == [".", "."]


def test_another_python_version_installs_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start.project_python()
    monkeypatch.setattr(start.platform, "python_version", lambda: "3.99.0")
    start.project_python()
    assert len(_installed(project)) == 2


def test_extras_are_added_and_kept(project: Path) -> None:
    start.project_python()
    start.project_python("dev")
    start.project_python()
    start.project_python("dev")
    (project / "constraints.txt").write_text("torch==2.14.0")
    start.project_python()
    assert _installed(project) == [".", ".[dev]", ".[dev]"]


def test_an_interrupted_installation_starts_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(start, "pip_install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start.project_python()
    leftover = project / ".venv" / "leftover"
    leftover.touch()
    start.project_python()
    assert not leftover.exists()
    assert not (project / ".venv" / start.UNFINISHED).exists()


def test_an_environment_without_a_working_python_is_replaced(project: Path) -> None:
    start.interpreter(start.project_python().parents[1]).unlink()
    start.project_python()
    assert _installed(project) == [".", "."]


def test_an_environment_of_the_user_is_used_unchanged(project: Path) -> None:
    start.make_environment(project / ".venv", 0)
    (project / ".venv" / start.UNFINISHED).unlink()
    mine = project / ".venv" / "mine"
    mine.touch()
    start.project_python()
    assert mine.exists()


def test_an_environment_of_the_user_without_pip_is_not_removed(project: Path) -> None:
    mine = project / ".venv" / "pyvenv.cfg"
    mine.parent.mkdir()
    mine.write_text("uv = 0.8")
    with pytest.raises(start.SetupError, match=r"was not made by start\.py and has no pip: move it, or install pip"):
        start.project_python()
    assert list(mine.parent.iterdir()) == [mine]


@pytest.fixture
def cache(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder; the user has not named a NeMo."""
    monkeypatch.setenv("NEST_CACHE", str(project / "cache"))
    for variable in start.NEMO.values():
        monkeypatch.delenv(variable, raising=False)
    return project / "cache"


def test_each_nemo_is_installed_once_for_all_clones(project: Path, cache: Path) -> None:
    first = {version: start.nemo_python(version) for version in start.NEMO}
    assert {version: start.nemo_python(version) for version in start.NEMO} == first
    assert all(python.exists() for python in first.values())
    assert _installed(project) == ["nemo_toolkit[asr]==3.0.0", "nemo_toolkit[asr]==2.7.3"]
    assert {path.name for path in cache.iterdir()} == {python.parents[1].name for python in first.values()}


def at_the_same_time(folder: Path, first: Callable[[], object], second: Callable[[], object]) -> None:
    """Run `second` while the folder is locked, and `first` as soon as `second` waits for the lock."""
    waiting = threading.Event()
    real = environments.lock_file

    def heard(path: Path, advice: str, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        return real(path, advice, lambda who: (tell(who), waiting.set()))  # type: ignore[arg-type, func-returns-value]

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as other:
        patch.setattr(environments, "lock_file", heard)
        with environments.one_at_a_time(folder):
            done = other.submit(second)
            assert waiting.wait(60)
            first()
        done.result(60)


def test_two_starts_at_once_install_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at_the_same_time(project / ".venv", lambda: start.install(()), start.project_python)
    assert _installed(project) == ["."]
    line = rf"waiting for process {os.getpid()} on \S+ since .*, which is making {re.escape(str(project / '.venv'))}\n"
    assert re.fullmatch(line, capsys.readouterr().out)
    assert not (project / ".venv.lock").exists()


def test_two_starts_at_once_install_nemo_once(project: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = environments.nemo_folder("3.0.0")
    at_the_same_time(
        folder, lambda: environments.make_nemo_environment("3.0.0", folder), lambda: start.nemo_python("3.0.0")
    )
    assert _installed(project) == ["nemo_toolkit[asr]==3.0.0"]
    assert "waiting for process" in capsys.readouterr().out


def test_the_leftover_of_a_killed_nemo_installation_is_removed(project: Path, cache: Path) -> None:
    left = environments.nemo_folder("3.0.0").with_name(environments.nemo_folder("3.0.0").name + ".1.partial")
    left.mkdir(parents=True)
    start.nemo_python("3.0.0")
    assert not left.exists()


def test_parity_gets_the_path_of_every_nemo(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: dict[str, str] = {}
    monkeypatch.setenv("NEST_NEMO_273_PYTHON", sys.executable)
    monkeypatch.setattr(start, "set_up", lambda *_: Path("python"))
    monkeypatch.setattr(start, "run", lambda *_, environment: handed.update(environment) or 0)
    assert start.main(["parity"]) == 0
    assert handed == {
        "NEST_NEMO_PYTHON": str(start.nemo_python("3.0.0")),
        "NEST_NEMO_273_PYTHON": sys.executable,
    }


def test_failed_nemo_installation_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise start.SetupError("no network")

    monkeypatch.setattr(environments, "pip_install", failing)
    with pytest.raises(start.SetupError, match="no network"):
        start.nemo_python("3.0.0")
    assert not cache.exists()


def test_an_installed_nemo_is_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environments.installed_nemo() is None
    made = start.nemo_python("3.0.0")
    assert environments.installed_nemo() == made
    monkeypatch.setenv("NEST_NEMO_PYTHON", sys.executable)
    assert environments.installed_nemo() == Path(sys.executable)


@pytest.mark.parametrize(("version", "variable"), start.NEMO.items())
def test_the_user_can_choose_the_nemo_interpreter(
    version: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, sys.executable)
    assert start.nemo_python(version) == Path(sys.executable)
    monkeypatch.setenv(variable, str(tmp_path / "nothing"))
    with pytest.raises(start.SetupError, match=rf"{variable} is .*nothing.*{version}"):
        start.nemo_python(version)


def test_a_pip_failure_shows_the_end_of_its_output_and_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    arguments = ["--no-index", "--find-links", str(tmp_path), "no-such-package-at-all"]
    log = tmp_path / "install.log"
    with pytest.raises(
        start.SetupError, match=r"(?s)could not install it.*No matching distribution.*found nothing at all"
    ):
        start.pip_install(Path(sys.executable), arguments, log, "it", "no time")
    assert "No matching distribution" in log.read_text()
    assert capsys.readouterr().out == "installing it (first time only, no time) ...\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError: Failed to establish a new connection", "network cannot be reached"),
        (
            "ERROR: Could not find a version (from versions: 1.0, 2.0)\nERROR: No matching distribution",
            "no such version",
        ),
        ("error: subprocess-exited-with-error", "Run it again"),
    ],
)
def test_advice_fits_the_failure(line: str, expected: str) -> None:
    assert expected in environments.advice(["Collecting torch", line])


def test_too_little_space_is_noticed_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(start.SetupError, match="GB free and installing needs about"):
        start.make_environment(tmp_path / "environment", 10**18)
    assert not list(tmp_path.iterdir())


def test_a_new_environment_can_install_packages(tmp_path: Path) -> None:
    if os.pathsep in str(tmp_path):
        pytest.skip("venv makes no environment whose path holds what separates paths")
    folder = tmp_path / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "leftover").touch()
    start.make_environment(folder, 0)
    assert start.has_pip(start.interpreter(folder))
    assert not (folder / "bin" / "leftover").exists()
    assert not start.has_pip(tmp_path / "nothing")


def test_exit_codes_of_programs_are_passed_on() -> None:
    assert start.run(Path(sys.executable), "-c", "raise SystemExit(7)") == 7
    assert (
        start.run(Path(sys.executable), "-c", "import os; raise SystemExit(os.environ['A'])", environment={"A": ""})
        == 1
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows ends processes without asking them")
def test_termination_is_passed_on_to_the_program(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print(flush=True);"
        f"time.sleep({2 * PATIENCE})"
    )
    code = f"import start, sys; from pathlib import Path; sys.exit(start.run(Path(sys.executable), '-c', {program!r}))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=start.ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 5


def test_unknown_task_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert start.main(["parrity"]) == 2
    assert "no task 'parrity' (did you mean 'parity'?)" in capsys.readouterr().err


def test_failed_setup_is_one_message_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: str) -> Path:
        raise start.SetupError("no space")

    monkeypatch.setattr(start, "set_up", failing)
    assert start.main(["test"]) == 2
    assert capsys.readouterr().err == "start.py: no space\n"


@pytest.mark.parametrize("code", [0, 3])
def test_demo_ends_with_how_to_activate_the_environment(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(start, "VENV", Path("another environment than that of the tests"))
    monkeypatch.setattr(start, "set_up", lambda: Path("python"))
    monkeypatch.setattr(start, "run", lambda python, *arguments: started.append(arguments) or code)
    assert start.main([]) == code
    assert started == [("train.py", "--config-name", "nest_tiny")]
    assert ("activate" in capsys.readouterr().out) == (code == 0)


def test_help_explains_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert start.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"start.py {task}" in text for task in start.TASKS if task != "demo")


@pytest.mark.parametrize(
    ("version", "expected"),
    [("3.8", "3.10 or newer"), ("3.9", "3.10 or newer"), ("3.14", "3.13 or older"), ("4.0", "3.13 or older")],
)
def test_an_unsupported_python_gets_a_one_line_error(version: str, expected: str) -> None:
    finished = _started_by(version)
    assert finished.returncode == 2
    (line,) = finished.stderr.splitlines()
    assert line.startswith(f"nest_ssl needs Python {expected}, and this is {version}: install one, then ")
    assert line.endswith("3.13 start.py")


def test_the_declared_pythons_are_accepted() -> None:
    assert [_started_by(version).returncode for version in DECLARED] == [0] * len(DECLARED)
    oldest, beyond = DECLARED[0], f"3.{int(DECLARED[-1].split('.')[1]) + 1}"
    assert f'requires-python = ">={oldest},<{beyond}"' in PROJECT.read_text(encoding="utf-8")


def _started_by(version: str) -> subprocess.CompletedProcess[str]:
    """Return the output of start.py under a Python that reports this version."""
    number = (*map(int, version.split(".")), 0)
    command = [sys.executable, "-c", OTHER_PYTHON.format(version=number, path=start.__file__), "--help"]
    return subprocess.run(command, cwd=start.ROOT, capture_output=True, text=True)


def test_every_dependency_is_pinned() -> None:
    pins = {line.split("==")[0].lower() for line in start.CONSTRAINTS.read_text().splitlines() if "==" in line}
    requirements = re.findall(r'"([\w-]+)>=', (start.ROOT / "pyproject.toml").read_text().lower())
    assert {"torch", "lightning", "ruff"} <= set(requirements)
    assert set(requirements) <= pins
    assert f"torch=={environments.TORCH}" in start.CONSTRAINTS.read_text().splitlines()


def test_each_package_is_pinned_to_one_version_per_python() -> None:
    markers: dict[str, list[Marker]] = {}
    for line in start.CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            markers.setdefault(requirement.name, []).append(requirement.marker or EVERYWHERE)
    for version, patch in itertools.product(DECLARED, range(20)):
        python = {"python_version": version, "python_full_version": f"{version}.{patch}"}
        several = {name: sum(marker.evaluate(python) for marker in found) for name, found in markers.items()}
        assert {name: count for name, count in several.items() if count != 1} == {}


def test_bench_runs_the_benchmarks_without_making_demonstration_data(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(start, "project_python", lambda: Path("python"))
    monkeypatch.setattr(start, "run", lambda python, *arguments: started.append(arguments) or 0)
    assert start.main(["bench", "--quick"]) == 0
    assert started == [("-m", "benchmarks.run", "--quick")]
