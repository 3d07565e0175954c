"""`nest-ssl export`: the result on standard output, wrong input in one line, exit codes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nest_ssl.apps.export.formats import FORMATS
from nest_ssl.cli.app import app
from tests.apps.export.saved_models import small_model


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs a command in this process, in a folder that contains only a model."""
    monkeypatch.chdir(tmp_path)
    small_model().save_to(tmp_path / "model.nemo")
    return lambda *arguments: CliRunner().invoke(app, ["export", *arguments])


def test_the_result_is_printed_as_text(run: Callable[..., Result]) -> None:
    done = run("model.nemo", "out/nest.safetensors", "--license", "mit")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("wrote out/nest.safetensors, out/README.md (")
    assert (
        "largest difference from the model: 0 of the encoding's root mean square, at most 0 (5 batches" in done.stdout
    )
    assert 'restore_from("nest.safetensors"' in done.stdout
    assert "checking batch 5 of 5" in done.stderr


def test_the_result_is_printed_as_json(run: Callable[..., Result]) -> None:
    done = run("model.nemo", "nest.safetensors", "--json")
    told = json.loads(done.stdout)
    assert (told["passed"], told["files"], told["largest_difference"]) == (True, ["nest.safetensors", "README.md"], 0)
    assert told["facts"]["sample_rate"] == "16000"


def test_a_difference_gives_exit_code_1_and_no_file_remains(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, ".safetensors", dataclasses.replace(FORMATS[".safetensors"], tolerance=-1.0))
    done = run("model.nemo", "nest.safetensors")
    assert done.exit_code == 1
    assert "more than -1" in done.stdout
    assert "nothing was written" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["model.nemo"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.nemo", "a.pt2"], "nowhere.nemo: no such file"),
        (["model.nemo", "model.nemo/a.pt2"], "model.nemo/a.pt2: cannot be written: "),
        (["model.nemo", "a.zip"], "a.zip: unknown suffix; expected .onnx, .pt2, .safetensors"),
        (["model.nemo", "a.safetensors", "--input", "audio"], "--input: .safetensors contains the whole model"),
        (["model.nemo", "a.pt2", "--force"], "--license, --force: only .safetensors has a model card"),
    ],
)
def test_wrong_input_gives_one_line_and_exit_code_2(
    run: Callable[..., Result], tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in error
    assert [path.name for path in tmp_path.iterdir()] == ["model.nemo"]
