"""Hostile run folders end in a page or in a one-line error, and never show files of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from nest_ssl.apps.report.events import _HEADER
from nest_ssl.apps.report.page import render
from nest_ssl.apps.report.run import open_runs
from nest_ssl.apps.report.summary import gather
from nest_ssl.errors import NestError
from tests.apps.report.example_runs import CONFIG, write_run, write_samples

BEGAN = 1.7e9
SECRET = "root:x:0:0:secret"
SCRIPT = "'\"><script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (folder := tmp_path / "run").mkdir()
    write_run(folder, began=BEGAN, steps=200)
    write_samples(folder, 150, count=1, seconds=1.0)
    record = {"kind": "missing", "file": "a.wav", "line": "m.json:3", "count": 2, "message": "a.wav: no such file"}
    (folder / "problem_audio.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    return folder


def page_of(folder: Path) -> str:
    """Return the page, or the one-line error."""
    try:
        reports = gather(open_runs([folder]))
        json.dumps([report.as_dict() for report in reports])
        return render(reports)
    except NestError as error:
        line = str(error)
    assert "\n" not in line
    assert len(line) < 600
    return line


def event_file(folder: Path) -> Path:
    return next(folder.glob("events.out.tfevents.*"))


def append_event(folder: Path, **fields: Any) -> None:
    values = fields.pop("values", [Summary.Value(tag="train_loss", simple_value=1.0)])
    record = Event(summary=Summary(value=values), **fields).SerializeToString()
    with event_file(folder).open("ab") as file:
        file.write(_HEADER.pack(len(record), 0) + record + bytes(4))


def configure(**changes: Any) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        config = json.loads(json.dumps(CONFIG))
        for key, value in changes.items():
            config["model"][key] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(config))

    return write


def lines(name: str, text: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)


def other_samples(**changes: Any) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (path,) = folder.glob("samples/*.npz")
        with np.load(path) as arrays:
            whole = {**arrays, **changes}
        np.savez_compressed(path, **{name: array for name, array in whole.items() if array is not None})

    return write


def claims_more(folder: Path) -> None:
    """Write an array whose header claims terabytes."""
    (path,) = folder.glob("samples/*.npz")
    header = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }"
    content = header.ljust(127) + b"\n"
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, member in members.items():
            new.writestr(name, content if name == "clean_0.npy" else member)


def bomb(folder: Path) -> None:
    (path,) = folder.glob("samples/*.npz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("clean_0.npy", "w") as member:
        for _ in range(300):
            member.write(bytes(2**20))


def sparse_events(folder: Path) -> None:
    with event_file(folder).open("r+b") as file:
        file.truncate(5 * 2**30)


BOMB_YAML = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
# Each attack on a folder, and a part of the page or of the error; None if any text will do.
ATTACKS: dict[str, tuple[Callable[[Path], object], str | None]] = {
    "aliases that unfold": (lines("config.yaml", BOMB_YAML), "aliases unfold"),
    "deep YAML": (lines("config.yaml", "[" * 10_000), "config.yaml: "),
    "long YAML": (lines("config.yaml", b"a: " + b"x" * 2**21), "at most"),
    "YAML that is not UTF-8": (lines("config.yaml", b"a: \xff\xfe"), "config.yaml: "),
    "a number without end": (lines("config.yaml", "model: {num_books: " + "9" * 5000 + "}"), "5000 digits"),
    "books without end": (configure(num_books=10**12), "<html"),
    "negative books and codes": (configure(num_books=-3, num_classes=-1), "<html"),
    "no codes": (configure(num_classes=0), "<html"),
    "codes beyond floats": (configure(num_classes=10**18), "<html"),
    "odd limits": (configure(train_ds={"min_duration": float("nan"), "max_duration": -1e308}), "<html"),
    "manifests of nothing": (configure(train_ds={"manifest_filepath": [[[], 3, None, {}]]}), "<html"),
    "deep JSON": (lines("environment.json", "[" * 10**5), "<html"),
    "odd JSON": (
        lines("environment.json", json.dumps({"adjusted": [{"key": 1}], "command": {}, "torch": []})),
        "<html",
    ),
    "a JSON of a number": (lines("environment.json", "9" * 5000), "<html"),
    "odd problems": (
        lines(
            "problem_audio.jsonl",
            '{"kind": [], "file": 1, "line": 2, "count": 3}\n{"kind": "x", "file": {}, "line": [], "count": 1e999}\n'
            '{"kind": "x", "file": {}, "line": [], "count": 3}\n[1]\n\xff\n' + "[" * 10**5,
        ),
        "<html",
    ),
    "problems that are not UTF-8": (lines("problem_audio.jsonl", b"\xff\xfe\n"), "<html"),
    "NaN times": (lambda folder: append_event(folder, step=3, wall_time=float("nan")), "<html"),
    "infinite times": (lambda folder: append_event(folder, step=300, wall_time=float("inf")), "<html"),
    "times before all": (lambda folder: append_event(folder, step=300, wall_time=-1e300), "<html"),
    "steps without end": (lambda folder: append_event(folder, step=2**63 - 1, wall_time=BEGAN), "<html"),
    "negative steps": (lambda folder: append_event(folder, step=-(2**63), wall_time=BEGAN), "<html"),
    "huge numbers": (
        lambda folder: append_event(
            folder,
            step=300,
            wall_time=BEGAN + 99,
            values=[Summary.Value(tag=tag, simple_value=3e38) for tag in ("train_loss", "val_loss", "epoch")],
        ),
        "<html",
    ),
    "a record longer than the file": (
        lambda folder: event_file(folder).write_bytes(_HEADER.pack(2**63, 0) + b"x"),
        "<html",
    ),
    "gigabytes of events": (sparse_events, "at most"),
    "a bomb of samples": (bomb, "unpacks to more than"),
    "terabytes of samples": (claims_more, "1099511627776"),
    "samples of objects": (other_samples(clean_0=np.array([{}], dtype=object)), "cannot be read"),
    "samples of other shapes": (other_samples(features_0=np.zeros(3)), "features_0 has shape"),
    "no samples at all": (other_samples(clean_0=np.zeros(0)), "clean_0 has shape"),
    "samples of nothing": (other_samples(mask_0=None), "cannot be read"),
    "a mask of other length": (other_samples(mask_0=np.zeros(7, dtype=bool)), "96 frames and mask_0 7"),
    "no rate": (other_samples(sample_rate=np.array(0)), "sample_rate is 0"),
    "NaN in samples": (other_samples(clean_0=np.full(16000, np.nan), features_0=np.full((80, 96), np.inf)), "<html"),
    "a checkpoint of no step": (
        lambda folder: [(folder / "checkpoints").mkdir(), (folder / "checkpoints" / f"step={'9' * 200}.ckpt").touch()],
        "<html",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_ends_in_a_page_or_a_one_line_error(name: str, run: Path) -> None:
    attack, expected = ATTACKS[name]
    attack(run)
    page = page_of(run)
    assert expected is None or expected in page


READ = ("config.yaml", "environment.json", "problem_audio.jsonl", "samples/step-000000150.npz", "EVENTS")


def place(run: Path, name: str) -> Path:
    return event_file(run) if name == "EVENTS" else run / name


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_refused_without_waiting(run: Path, tmp_path: Path) -> None:
    folders = [shutil.copytree(run, tmp_path / "pipes" / str(index)) for index in range(len(READ))]
    paths = [place(folder, name) for folder, name in zip(folders, READ, strict=True)]
    for path in paths:
        path.unlink()
        os.mkfifo(path)
    code = "import sys, pathlib, tests.apps.report.test_foreign as t\n"
    code += "for folder in sys.argv[1:]: print(t.page_of(pathlib.Path(folder)))"
    shown = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    for path in paths:
        assert f"{path}: is not a regular file (a named pipe)" in shown.stdout


@pytest.mark.parametrize("name", READ)
def test_a_link_out_of_the_folder_is_not_read(name: str, run: Path, tmp_path: Path) -> None:
    path, outside = place(run, name), tmp_path / "outside"
    shutil.copy(path, outside)
    if name.endswith((".yaml", ".json", ".jsonl")):
        outside.write_text(
            json.dumps(
                {"model": {"secret": SECRET}, "torch": SECRET, "kind": SECRET, "file": "", "line": "", "count": 1}
            )
        )
    path.unlink()
    try:
        path.symlink_to(outside)
    except OSError:
        pytest.skip("links need a permission here")
    page = page_of(run)
    assert "is a link that leaves the folder of the run" in page
    assert SECRET not in page


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices as files")
@pytest.mark.parametrize("name", READ)
def test_a_device_is_not_read(name: str, run: Path) -> None:
    path = place(run, name)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "leaves the folder of the run" in page_of(run)


def test_html_in_names_and_texts_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / ("run" if os.name == "nt" else SCRIPT.replace("/", "~"))
    folder.mkdir()
    write_run(folder, began=BEGAN, steps=200, config={**CONFIG, SCRIPT: {"x": SCRIPT}})
    (folder / "environment.json").write_text(json.dumps({"command": [SCRIPT], "torch": SCRIPT, SCRIPT: SCRIPT}))
    record = dict.fromkeys(("kind", "file", "line", "message"), SCRIPT) | {"count": 1}
    (folder / "problem_audio.jsonl").write_text(json.dumps(record) + "\n")
    tag = f"{SCRIPT}val_loss"
    append_event(folder, step=300, wall_time=BEGAN + 99, values=[Summary.Value(tag=tag, simple_value=1.0)])
    page = page_of(folder)
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "'\"><" not in page


def damage(content: bytes, at: float, length: int, new: bytes) -> bytes:
    start = int(at * len(content))
    return content[:start] + new + content[start + length :]


edit = st.tuples(
    st.sampled_from(READ),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0, 1, 3, 50, 10**6]),
    st.binary(max_size=9),
)


def test_random_damage_never_ends_in_a_traceback(run: Path) -> None:
    whole = {name: place(run, name).read_bytes() for name in READ}

    @given(st.lists(edit, min_size=1, max_size=4))
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def fuzz(edits: list[tuple[str, float, int, bytes]]) -> None:
        contents = dict(whole)
        for name, at, length, new in edits:
            contents[name] = damage(contents[name], at, length, new)
        for name, content in contents.items():
            place(run, name).write_bytes(content)
        assert page_of(run)

    fuzz()


@pytest.mark.skipif(
    sys.platform != "linux" or find_spec("resource") is None, reason="elsewhere a process's memory cannot be bounded so"
)
def test_attacks_need_little_memory(run: Path, tmp_path: Path) -> None:
    """Run all attacks in a process that may allocate only 700 MB."""
    for index, (attack, _) in enumerate(ATTACKS.values()):
        folder = shutil.copytree(run, tmp_path / "attacks" / str(index))
        if attack is not sparse_events:  # its copy would not be sparse
            attack(folder)
    program = """
import resource, sys
from pathlib import Path
from tests.apps.report.test_foreign import page_of
page_of(Path(sys.argv[2]))
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 700 * 2**20,) * 2)
for folder in sorted(Path(sys.argv[1]).iterdir()):
    page_of(folder)
"""
    command = [sys.executable, "-c", program, tmp_path / "attacks", run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
