"""The suite as other systems would run it: spawned processes, no fork, few signals, odd paths, another encoding.

`PYTHONPATH=tests/elsewhere pytest ...` does it for any test; here for those that start processes and read files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nest_ssl.data import build_dataloader
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.data.manifest import load_manifest
from nest_ssl.errors import NestError
from nest_ssl.training.command_line import CommandLine
from nest_ssl.training.config import load_config

ROOT = Path(__file__).resolve().parents[1]
STARTING_PROCESSES = [
    "tests/data/test_loader.py",
    "tests/data/test_check.py",
    "tests/data/test_tar_writer.py",
    "tests/integration/test_train_command.py::test_an_unreadable_file_is_one_line_also_from_a_loader_process",
    "tests/integration/test_train_command.py::test_the_same_command_continues_a_run",
    "tests/doctor/test_machine.py::test_this_machine_can_be_described",
]
READING_TEXT = [
    "tests/cli/test_app.py",
    "tests/cli/test_data.py",
    "tests/cli/test_features.py",
    "tests/doctor/test_plan.py",
    "tests/training/test_config.py",
]
TINY_SHARED_MEMORY = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'


def _run_elsewhere(basetemp: Path, tests: list[str], **variables: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "elsewhere"), "LC_ALL": "C", **variables}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={basetemp}", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_processes_are_spawned_below_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    _run_elsewhere(tmp_path / "Eigene Dateien (1) 语音 & noise", STARTING_PROCESSES)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there it is so anyway")
def test_files_are_utf_8_where_the_system_is_not(tmp_path: Path) -> None:
    # LC_ALL=C alone would turn Python's UTF-8 mode on; and soundfile cannot open other than ASCII names without it
    _run_elsewhere(tmp_path / "plain", READING_TEXT, PYTHONUTF8="0", PYTHONWARNDEFAULTENCODING="1")


def test_a_process_under_the_test_lacks_what_other_systems_lack() -> None:
    code = (
        "import multiprocessing as m, os, signal, sys;"
        "print(m.get_start_method(), hasattr(os, 'fork'), hasattr(os, 'killpg'), hasattr(signal, 'SIGPIPE'),"
        "sys.modules['resource'], sys.modules['fcntl'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "elsewhere")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["spawn", "False", "False", "False", "None", "None"]


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
def test_little_shared_memory_is_a_warning_with_what_to_do(tmp_path: Path) -> None:
    alone = ["unshare", "-m", "sh", "-c", TINY_SHARED_MEMORY, "sh"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("needs a mount of its own, which only root may make on Linux")
    make_dummy_corpus(tmp_path / "data" / "dummy_ssl", train=4, val=2, noise=1)
    doctor = [sys.executable, "-m", "nest_ssl", "doctor", "--no-trial", "model.train_ds.num_workers=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    done = subprocess.run([*alone, *doctor], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    assert "workers fill up to" in done.stdout
    assert "--shm-size" in done.stdout
