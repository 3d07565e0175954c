"""The wheel is installed with its dependencies into an empty environment and used in an empty folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest_ssl.environments import advice
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
SMALL = ["model.encoder.n_layers=1", "model.encoder.d_model=32", "model.encoder.subsampling_conv_channels=8"]
TRAIN = [
    "--config-name",
    "nest_tiny",
    *SMALL,
    *(f"trainer.{key}=1" for key in ("max_steps", "max_epochs", "log_every_n_steps")),
]
LHOTSE = [
    f"model.{name}.{key}" for name in ("train_ds", "validation_ds") for key in ("use_lhotse=true", "batch_size=2")
]
WANDB = ["exp_manager.create_wandb_logger=true", "exp_manager.wandb_logger_kwargs={name: a, project: b, offline: true}"]
PROBE = ["model.nemo", "data/dummy_ssl/labelled.json", "--label", "label", "--random-seeds", "2"]
# extra -> a command that uses it, and its result: a file, or printed words
USES: dict[str, tuple[list[str], str]] = {
    "lhotse": (["-m", "nest_ssl", "train", *TRAIN, *LHOTSE], "nest_experiments/**/*.nemo"),
    "wandb": (["-m", "nest_ssl", "train", *TRAIN, *WANDB], "**/wandb/offline-run-*/*.wandb"),
    "mlflow": (["-m", "nest_ssl", "train", *TRAIN, "exp_manager.create_mlflow_logger=true"], "**/mlruns/**/meta.yaml"),
    "export": (["-m", "nest_ssl", "export", "model.nemo", "encoder.onnx"], "encoder.onnx"),
    "probe": (["-m", "nest_ssl", "probe", *PROBE, "--json"], '"verdict"'),
    "docs": (["-m", "mkdocs", "build", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d", "HERE/site"], "site/index.html"),
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of commands of an environment with the wheel and two extras, without the packages of the tests."""
    folder = tmp_path_factory.mktemp("wheel with spaces 轮子")
    if os.pathsep in str(folder):
        pytest.skip("venv makes no environment whose path holds what separates paths")
    pip = PIP
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
    shutil.rmtree(environment, ignore_errors=True)  # pytest would keep this gigabyte for three runs


def run(command: list[str | Path], folder: Path, more_packages: str = "", most: int = 0) -> str:
    # MLflow writes its location to the environment of the tests
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "MLFLOW_"))}
    if more_packages:
        environment["PYTHONPATH"] = more_packages
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=PATIENCE)
    assert 0 <= done.returncode <= most, done.stdout + done.stderr
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
def test_an_installed_wheel_contains_every_preset(scripts: Path, tmp_path: Path) -> None:
    code = "from nest_ssl.config.command_line import preset_folder; print(preset_folder())"
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
    # the same as train_with_saver.py and tools/compare_nemo_nest_outputs.py in a clone
    record = (
        "from nest_ssl.apps.alignment.nest_side import main; from nest_ssl.config.command_line import preset_folder"
    )
    steps = ["--config-name", "nest_tiny", *SMALL, "trainer.max_steps=1", "output_dir=recorded", "save_steps=0"]
    run([scripts / "python", "-c", f"{record}; raise SystemExit(main(config_dir=preset_folder()))", *steps], tmp_path)
    compare = "from nest_ssl.apps.alignment.compare_command import main; raise SystemExit(main())"
    sides = ["--nemo_output_dir", "recorded", "--nest_output_dir", "recorded"]
    assert "layers" in run([scripts / "python", "-c", compare, *sides], tmp_path)


@pytest.fixture(scope="module")
def trained(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained model, model.nemo, and data/dummy_ssl with a label in each line."""
    folder = tmp_path_factory.mktemp("trained")
    run([scripts / "nest-ssl", "data", "make-dummy", "--train", "12", "--val", "2", "--noise", "1"], folder)
    run([scripts / "nest-ssl", "train", *TRAIN], folder)
    (model,) = folder.rglob("*.nemo")
    shutil.copy(model, folder / "model.nemo")
    lines = (folder / "data/dummy_ssl/train_manifest.json").read_text(encoding="utf-8").splitlines()
    rows = [{**json.loads(line), "label": "ab"[number % 2]} for number, line in enumerate(lines)]
    labelled = folder / "data/dummy_ssl/labelled.json"
    labelled.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("extra", USES)
def test_an_extra_has_all_that_it_needs(extra: str, scripts: Path, trained: Path, tmp_path: Path) -> None:
    """The packages of the extra are installed over the environment of the wheel, without those of other extras."""
    base = run([scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).strip()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / scripts.name / "python"
    constraints = str(ROOT / "constraints.txt")
    install = [*PIP, "--python", str(python), "install", "-q", "-c", constraints, f"nest_ssl[{extra}]"]
    run([*install], tmp_path, more_packages=base)
    use, made = USES[extra]
    shutil.copytree(trained / "data", tmp_path / "data")
    shutil.copy(trained / "model.nemo", tmp_path)
    learned_nothing = int(extra == "probe")  # its exit code for an untrained model
    use = [part.replace("HERE", str(tmp_path)) for part in use]  # mkdocs changes to the folder of its file
    said = run([python, *use], tmp_path, more_packages=base, most=learned_nothing)
    assert made in said or list(tmp_path.glob(made))


def test_every_extra_is_tried() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(r"(?m)^(\w+) = \[", text.partition("[project.optional-dependencies]")[2].partition("\n[")[0])
    # the fixture `scripts` uses the extras tar and report; the tests use dev
    assert sorted(extras) == sorted([*USES, "tar", "report", "dev"])
