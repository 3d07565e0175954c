"""The tests on an imitation of other systems: spawned processes, no fork, few signals, odd paths, another encoding.

`python -m tests.elsewhere` runs everything so. Here are the tests of the commands and of the apps that read and write
files, print and start processes; tests/test_apps_removed.py runs those of the core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from nest_ssl.data import build_dataloader
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.data.manifest import load_manifest
from nest_ssl.errors import NestError
from tests.elsewhere.__main__ import ODD_FOLDER, command, environment
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["tests/cli", "tests/apps/datatools", "tests/apps/features", "tests/apps/export"]
FILES = [
    *("tests/test_atomic.py", "tests/test_memory.py", "tests/test_start.py"),
    *("tests/apps/doctor/test_machine.py", "tests/integration/test_train_command.py"),
]
# Tests of the core that only `python -m tests.elsewhere` runs so: some spawn hundreds of processes, which takes seconds
# each; the others compute the same on every system
SPAWNS_MUCH = [
    *("tests/data/test_concat.py", "tests/data/lhotse/test_lhotse_data.py"),
    *("tests/data/loading/test_resumable.py", "tests/data/tarred/test_tarred.py"),
]
SAME_EVERYWHERE = ["tests/checkpoint/test_restore.py", "tests/training/test_module.py", "tests/training/optim"]
READING_TEXT = [
    "tests/cli/test_app.py",
    "tests/cli/test_data.py",
    "tests/cli/test_features.py",
    "tests/apps/doctor/test_plan.py",
    "tests/config/test_compose.py",
]
TINY_SHARED_MEMORY = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'


def _run_elsewhere(basetemp: Path, tests: list[str], **variables: str) -> None:
    done = subprocess.run(
        [*command(basetemp), *tests],
        cwd=ROOT,
        env={**environment(), **variables},
        capture_output=True,
        encoding="utf-8",
        timeout=8 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_what_depends_on_files_and_processes_works_elsewhere(tmp_path: Path) -> None:
    _run_elsewhere(tmp_path / ODD_FOLDER, [*FOLDERS, *FILES, "-m", "not slow"])


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there it is so anyway")
def test_files_are_utf_8_if_the_encoding_of_the_system_is_not(tmp_path: Path) -> None:
    # LC_ALL=C alone would turn on Python's UTF-8 mode; without that mode, soundfile can open ASCII names only
    _run_elsewhere(tmp_path / "plain", READING_TEXT, PYTHONUTF8="0")


def test_a_process_and_its_children_lack_the_features_of_linux(tmp_path: Path) -> None:
    told = (
        "import multiprocessing as m, os, shutil, signal, sys;"
        "print(m.get_start_method(), hasattr(os, 'fork'), hasattr(os, 'killpg'), hasattr(signal, 'SIGPIPE'),"
        "sys.modules['resource'], sys.modules['fcntl']);"
        "open(sys.argv[1], 'w', encoding='utf-8').write('line' + chr(10));"
        "shutil.disk_usage('/dev/shm')"
    )
    code = (
        "import os, subprocess, sys; bare = {**os.environ, 'PYTHONPATH': ''};"
        f"sys.exit(subprocess.call([sys.executable, '-c', {told!r}, sys.argv[1]], env=bare))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "text"], env=environment(), capture_output=True, encoding="utf-8"
    )
    assert done.stdout.split() == ["spawn", "False", "False", "False", "None", "None"]
    assert (tmp_path / "text").read_bytes() == b"line\r\n"
    assert "FileNotFoundError" in done.stderr


@pytest.mark.parametrize("mode", ["utf-8", "default"])
def test_our_modules_must_name_an_encoding(mode: str) -> None:
    argument = "encoding='utf-8'" if mode == "utf-8" else ""
    code = f"exec(compile('open(__import__(\"os\").devnull, {argument})', 'x', 'exec'), {{'__name__': 'nest_ssl.x'}})"
    environment = {"PYTHONPATH": str(ROOT / "tests" / "elsewhere"), "PYTHONWARNDEFAULTENCODING": "1"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True)
    assert (b"EncodingWarning" in done.stderr) == (mode == "default")


def test_files_written_on_windows_are_read(tmp_path: Path) -> None:
    corpus = make_dummy_corpus(tmp_path / "data", train=2, val=1, noise=1)
    expected = load_manifest([str(corpus.train_manifest)])
    _with_crlf(corpus.train_manifest)
    found = load_manifest([str(corpus.train_manifest)])
    assert [found[i] for i in range(len(found))] == [expected[i] for i in range(len(expected))]
    shutil.copytree(ROOT / "config", tmp_path / "config")
    before = load_config(CommandLine(tmp_path / "config", "nest_tiny", []))
    for path in (tmp_path / "config").rglob("*.yaml"):
        _with_crlf(path)
    assert load_config(CommandLine(tmp_path / "config", "nest_tiny", [])) == before


def _with_crlf(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


@pytest.mark.skipif(os.name == "nt", reason="there such a path is usual")
def test_a_path_of_windows_is_named_as_it_is_written(tmp_path: Path) -> None:
    manifest = tmp_path / "m.json"
    manifest.write_text(r'{"audio_filepath": "C:\\Users\\Anna\\a.wav", "duration": 2.0}', encoding="utf-8")
    config = {"manifest_filepath": str(manifest), "sample_rate": 16000, "batch_size": 1}
    with pytest.raises(NestError) as caught:
        list(build_dataloader(config, key="model.train_ds"))
    assert r"C:\Users\Anna\a.wav" in str(caught.value)


@pytest.mark.slow
def test_little_shared_memory_gives_a_warning_with_advice(tmp_path: Path) -> None:
    alone = ["unshare", "-m", "sh", "-c", TINY_SHARED_MEMORY, "sh"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("needs a mount of its own, which only root may make on Linux")
    make_dummy_corpus(tmp_path / "data" / "dummy_ssl", train=4, val=2, noise=1)
    doctor = [sys.executable, "-m", "nest_ssl", "doctor", "--no-trial", "model.train_ds.num_workers=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    done = subprocess.run([*alone, *doctor], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    assert "workers fill up to" in done.stdout
    assert "--shm-size" in done.stdout
