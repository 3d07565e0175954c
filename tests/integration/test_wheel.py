"""The wheel by itself: pip puts it and what it says it needs into an empty environment; used from an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest_ssl.environments import advice
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SMALL = ["model.encoder.n_layers=1", "model.encoder.d_model=32", "model.encoder.subsampling_conv_channels=8"]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of commands of an environment that has the wheel with two extras, and nothing of the tests' own."""
    folder = tmp_path_factory.mktemp("wheel with spaces 轮子")
    if os.pathsep in str(folder):
        pytest.skip("venv makes no environment whose path holds what separates paths")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run(build, check=True, capture_output=True)
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    commands = environment / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = folder.glob("*.whl")
    install = [*pip, "--python", str(commands / "python"), "install", "-c", str(ROOT / "constraints.txt")]
    done = subprocess.run([*install, f"{wheel}[tar,report]"], capture_output=True, encoding="utf-8", errors="replace")
    told = advice(done.stderr.splitlines())
    if done.returncode and "network" in told and "NEST_REQUIRE_NETWORK" not in os.environ:
        pytest.skip(told)
    assert done.returncode == 0, done.stderr
    yield commands
    shutil.rmtree(environment, ignore_errors=True)  # a gigabyte, which pytest would keep for three runs


def run(command: list[str | Path], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_wheel_makes_data_and_trains_on_it(scripts: Path, tmp_path: Path) -> None:
    where = run([scripts / "python", "-c", "import nest_ssl; print(nest_ssl.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(scripts.parent)
    run([scripts / "nest-ssl", "data", "make-dummy", "--train", "4", "--val", "2", "--noise", "1"], tmp_path)
    train = [scripts / "nest-ssl", "train", "--config-name", "nest_tiny", *SMALL, "trainer.max_epochs=1"]
    assert "NeMo archive: " in run(train, tmp_path)
    assert list(tmp_path.rglob("*.nemo"))


@pytest.mark.slow
def test_an_installed_wheel_holds_every_preset(scripts: Path, tmp_path: Path) -> None:
    code = "from nest_ssl.presets import preset_folder; print(preset_folder())"
    folder = Path(run([scripts / "python", "-c", code], tmp_path).strip())
    assert folder.is_relative_to(scripts.parent)
    presets = [path.relative_to(ROOT / "config") for path in (ROOT / "config").rglob("*.yaml")]
    assert presets
    assert all((folder / path).read_bytes() == (ROOT / "config" / path).read_bytes() for path in presets)


@pytest.mark.slow
def test_the_tools_of_an_installed_wheel_run(scripts: Path, tmp_path: Path) -> None:
    nest = [scripts / "python", "-m", "nest_ssl"]
    run([*nest, "data", "make-dummy", "--train", "4", "--val", "2", "--noise", "1"], tmp_path)
    manifest = "data/dummy_ssl/train_manifest.json"
    assert "4 lines" in run([*nest, "data", "check", manifest, "--workers", "1"], tmp_path)
    run([*nest, "data", "tar", manifest, "--output", "tarred", "--shards", "2", "--workers", "1"], tmp_path)
    assert len(list((tmp_path / "tarred").glob("*.tar"))) == 2
    # what train_with_saver.py and tools/compare_nemo_nest_outputs.py do in a clone
    record = "from nest_ssl.alignment.nest_side import main; from nest_ssl.presets import preset_folder"
    steps = ["--config-name", "nest_tiny", *SMALL, "trainer.max_steps=1", "output_dir=recorded", "save_steps=0"]
    run([scripts / "python", "-c", f"{record}; raise SystemExit(main(config_dir=preset_folder()))", *steps], tmp_path)
    compare = "from nest_ssl.alignment.compare_command import main; raise SystemExit(main())"
    sides = ["--nemo_output_dir", "recorded", "--nest_output_dir", "recorded"]
    assert "layers" in run([scripts / "python", "-c", compare, *sides], tmp_path)
