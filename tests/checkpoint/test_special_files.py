"""A pipe, a device or a folder instead of a file: every reader reports it at once in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nest_ssl.checkpoint import SavedModel, write_nemo

PROGRAM = """
import json, sys
from pathlib import Path
from nest_ssl.checkpoint import convert, load_lightning_checkpoint, load_nemo, load_safetensors, restore_config
from nest_ssl.checkpoint.restore import read_config, read_model
from nest_ssl.errors import NestError
from nest_ssl.training.checkpointing.checkpoint_files import _damage
readers = {
    "model": read_model,
    "config": read_config,
    "ckpt": load_lightning_checkpoint,
    "nemo": load_nemo,
    "safetensors": load_safetensors,
    "override": lambda path: restore_config(sys.argv[2], path),
    "convert": lambda path: convert(path, Path(sys.argv[1]) / "made.nemo"),
}
for path in sorted(Path(sys.argv[1]).rglob("*.*")):
    for name, read in readers.items():
        try:
            read(path)
            line = "was read"
        except NestError as error:
            line = str(error)
        except OSError as error:
            line = f"{error.filename}: {error.strerror}"
        print(json.dumps([str(path), name, line]), flush=True)
    if path.suffix == ".ckpt":
        print(json.dumps([str(path), "damage", f"{path}: {_damage(path)}"]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo") or not Path("/dev/zero").exists(), reason="no such files here")
def test_anything_but_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """The test uses a separate process, because opening a pipe would wait forever."""
    model, folder = tmp_path / "model.nemo", tmp_path / "special"
    folder.mkdir()
    write_nemo(SavedModel(OmegaConf.create({"a": 1}), {}), model)
    for suffix in ("nemo", "ckpt", "safetensors"):
        os.mkfifo(folder / f"pipe.{suffix}")
        (folder / f"device.{suffix}").symlink_to("/dev/zero")
        (folder / f"folder.{suffix}").mkdir()
    run = subprocess.run([sys.executable, "-c", PROGRAM, folder, model], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert {name for _, name, _ in found} >= {"model", "ckpt", "nemo", "safetensors", "override", "damage"}
    kinds = {"pipe": "is not a regular file (a named pipe)", "device": "is not a regular file (a device)"}
    for path, name, line in found:
        expected = kinds.get(Path(path).stem, "is a folder")
        assert line == f"{path}: {expected}", (name, line)
