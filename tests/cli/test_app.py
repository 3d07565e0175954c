"""The command `nest-ssl`: quick help, one-line errors, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nest_ssl import __version__
from nest_ssl.checkpoint import load_nemo
from nest_ssl.cli import main
from nest_ssl.cli.app import app
from nest_ssl.cli.common_options import command_line
from nest_ssl.config.command_line import CommandLine
from nest_ssl.folder_lock import LOCK, lock_folder
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_train_accepts_the_arguments_of_train_py(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("data", "make-dummy", "--train", "4", "--val", "2", "--noise", "1").exit_code == 0
    small = ["model.encoder.n_layers=1", "model.encoder.d_model=32", "model.encoder.subsampling_conv_channels=8"]
    done = run("train", "--config-name", "nest_tiny", *small, "trainer.max_epochs=1", "seed=1")
    assert done.exit_code == 0, done.stdout
    assert "to train on:     nest-ssl train --config-name nest_tiny" in done.stdout
    assert list(tmp_path.rglob("*last.ckpt"))
    wrong = run("train", "trainer.max_stepps=1")
    assert wrong.exit_code == 2
    assert "did you mean 'trainer.max_steps'" in wrong.stderr


def test_configurations_are_named_as_for_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = ROOT / "config"
    assert command_line(None, "nest_tiny", None) == CommandLine(ours, "nest_tiny", [])
    given = command_line(Path("config"), "nest_tiny.yaml", ["seed=1", "~model.optim"])
    assert given == CommandLine(ours, "nest_tiny", ["seed=1", "~model.optim"])
    (tmp_path / "config").mkdir()
    assert command_line(Path("config"), "nest_tiny", None).config_dir == tmp_path / "config"


def test_the_version_is_printed(run: Callable[..., Result]) -> None:
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"nest-ssl {__version__}\n")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, nest_ssl.cli.app; sys.exit(len({'torch', 'numpy', 'lightning', 'hydra'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_models_are_converted_and_converted_back(run: Callable[..., Result], tmp_path: Path) -> None:
    model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(ROOT / "config" / "nest_fast-conformer.yaml").model)
    model.save_to(tmp_path / "a.nemo")
    for source, target in (("a.nemo", "b.safetensors"), ("b.safetensors", "c.nemo")):
        done = run("convert", source, target)
        assert (done.exit_code, done.stdout, done.stderr) == (0, f"wrote {target}\n", "")
    told = json.loads(run("convert", "a.nemo", "b.safetensors", "--json").stdout)
    assert told["bytes"] == (tmp_path / "b.safetensors").stat().st_size
    first, last = load_nemo(tmp_path / "a.nemo"), load_nemo(tmp_path / "c.nemo")
    assert first.config == last.config
    assert all(first.state_dict[name].equal(tensor) for name, tensor in last.state_dict.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "nowhere.nemo", "b.safetensors"], "nowhere.nemo: no such file"),
        (["convert", "a.zip", "b.safetensors"], "a.zip: its suffix names no format here"),
        (["align", "--nemo-python", "nowhere"], "--nemo-python: 'nowhere' does not exist"),
        (["align", "--nemo-python", sys.executable, "model.numerics=fast"], "use model.numerics=exact"),
        (["align", "--nemo-python", sys.executable, "--save-steps", "5"], "step 5 is not among the 2 steps"),
        (
            ["align", "--nemo-python", sys.executable, "--save-steps", "x"],
            "--save-steps: is 'x'; expected steps such as",
        ),
        (["align", "--nemo-python", sys.executable, "model.encodr=1"], "model.encodr: no such key"),
        (["align", "--config-path", "nowhere"], "--config-path: 'nowhere' is not a folder"),
        (["align", "--config-name", "nest_tyny.yaml"], "--config-name: there is no nest_tyny.yaml in "),
        (
            [*("align", "-cp", "config", "-cn", "nest_tiny.yaml"), "--nemo-python", sys.executable, "model.encodr=1"],
            "model.encodr: no such key",
        ),
    ],
)
def test_wrong_input_gives_one_line_and_exit_code_2(
    run: Callable[..., Result], arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interpreter_without_nemo_is_named_with_its_log(run: Callable[..., Result], tmp_path: Path) -> None:
    done = run("align", "--nemo-python", sys.executable)
    assert done.exit_code == 2
    assert "NeMo failed: ModuleNotFoundError: No module named 'nemo'; all of it is in " in done.stderr
    assert (tmp_path / "alignment" / "nemo.log").is_file()


def test_a_folder_with_other_files_is_not_touched(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = run("align", "--nemo-python", sys.executable, "--output", ".")
    assert done.exit_code == 2
    assert "holds other files; give a new folder with --output" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_project_with_its_own_configuration_is_not_taken_for_an_earlier_alignment(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1")
    (tmp_path / "nemo").mkdir()
    (tmp_path / "nemo" / "clone.py").write_text("years of work")
    done = run("align", "--nemo-python", sys.executable, "--output", ".")
    assert done.exit_code == 2
    assert "holds other files; give a new folder with --output" in done.stderr
    assert (tmp_path / "nemo" / "clone.py").read_text() == "years of work"


def test_an_earlier_alignment_is_replaced(run: Callable[..., Result], tmp_path: Path) -> None:
    for _ in range(2):
        done = run("align", "--nemo-python", sys.executable)
        assert "NeMo failed: ModuleNotFoundError: No module named 'nemo'" in done.stderr
        (tmp_path / "alignment" / "report.html").write_text("of before")
    run("align", "--nemo-python", sys.executable)
    assert not (tmp_path / "alignment" / "report.html").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["align", "--nemo-python", sys.executable, "--output", "result"],
        ["features", "model.nemo", "list.json", "--output", "result"],
        ["data", "tar", "list.json", "--shards", "1", "--output", "result"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_folder_that_another_process_uses_is_not_touched(
    run: Callable[..., Result], tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "list.json").write_text(json.dumps({"audio_filepath": "a.wav", "duration": 1.0}))
    with lock_folder(tmp_path / "result", "wait"):
        done = run(*command)
        assert [path.name for path in (tmp_path / "result").iterdir()] == [LOCK]
    assert done.exit_code == 2
    assert f"result: is in use by process {os.getpid()} on " in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_installed_command_is_this_one() -> None:
    (command,) = entry_points(group="console_scripts", name="nest-ssl")
    assert command.load() is main
