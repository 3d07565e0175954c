"""The wheel by itself: installed into an empty environment, used from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel and, by reference, what it depends on."""
    folder = tmp_path_factory.mktemp("wheel with spaces 轮子")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run(build, check=True, capture_output=True)
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    commands = environment / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = folder.glob("*.whl")
    install = [*pip, "--python", str(commands / "python"), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    paths = sysconfig.get_paths(vars={"base": str(environment), "platbase": str(environment)})
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(paths["purelib"], "dependencies.pth").write_text("\n".join(dependencies), encoding="utf-8")
    return commands


def run(command: list[str | Path], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_wheel_makes_data_and_trains_on_it(scripts: Path, tmp_path: Path) -> None:
    where = run([scripts / "python", "-c", "import nest_ssl; print(nest_ssl.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(scripts.parent)
    run([scripts / "nest-ssl", "data", "make-dummy", "--train", "4", "--val", "2", "--noise", "1"], tmp_path)
    small = ["model.encoder.n_layers=1", "model.encoder.d_model=32", "model.encoder.subsampling_conv_channels=8"]
    train = [scripts / "nest-ssl", "train", "--config-name", "nest_tiny", *small, "trainer.max_epochs=1"]
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
