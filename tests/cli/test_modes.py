"""Every file that a command writes has the permissions that the umask allows."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nest_ssl.cli.app import app
from tests.apps.export.saved_models import small_model
from tests.integration.conftest import SMALL

COMMANDS = [
    ["data", "make-dummy", "--output", "dummy", "--train", "3", "--val", "2", "--noise", "1"],
    ["convert", "model.nemo", "converted.safetensors"],
    ["convert", "converted.safetensors", "converted.nemo"],
    ["export", "model.nemo", "exported/model.safetensors"],
    ["features", "model.nemo", "dummy/train_manifest.json", "--output", "features"],
    ["features", "model.nemo", "dummy/train_manifest.json", "--output", "safe", "--format", "safetensors"],
    ["data", "tar", "dummy/train_manifest.json", "--output", "tarred", "--shards", "1", "--workers", "1"],
    ["data", "check", "dummy/train_manifest.json", "--write-clean", "clean.json", "--report", "report.jsonl"],
    [
        *("train", *SMALL, "trainer.max_steps=1", "trainer.val_check_interval=1", "exp_manager.exp_dir=runs"),
        *("model.train_ds.manifest_filepath=dummy/train_manifest.json", "model.train_ds.num_workers=0"),
        *("model.validation_ds.manifest_filepath=dummy/val_manifest.json", "model.validation_ds.num_workers=0"),
        *("model.train_ds.batch_size=2", "model.validation_ds.batch_size=2"),
    ],
    ["report", "runs/SSL-NEST-FastConformer", "--output", "report.html"],
]


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
@pytest.mark.parametrize("umask", [0o022, 0o027], ids=oct, indirect=True)
def test_every_file_has_the_mode_that_the_umask_gives(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small_model().save_to(tmp_path / "model.nemo")
    written = 0
    for command in COMMANDS:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (command, done.output, done.stderr)
        now = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
        assert len(now) > written, command
        written = len(now)
        assert {path.name: oct(mode) for path, mode in now.items() if mode != 0o666 & ~umask} == {}, command
