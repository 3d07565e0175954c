"""The commands `nest-ssl features` and `nest-ssl probe`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from typer.testing import CliRunner, Result

from nest_ssl.cli.app import app
from nest_ssl.cli.common_options import usable_device
from nest_ssl.errors import NestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

CONFIG = Path(__file__).parents[2] / "config" / "nest_fast-conformer.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, tones of two frequencies, a file that is not audio, and a manifest of the tones."""
    folder = tmp_path_factory.mktemp("speech")
    torch.manual_seed(0)
    EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG).model).save_to(folder / "model.nemo")
    lines = []
    for number in range(20):
        height = ("low", "high")[number % 2]
        tone = np.sin(np.arange(8000) * {"low": 0.1, "high": 1.0}[height]) * 0.1
        soundfile.write(folder / f"{number}.wav", tone, 16000)
        lines.append({"audio_filepath": f"{number}.wav", "height": height})
    (folder / "tones.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "bad.wav").write_bytes(b"no audio")
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_skipped_audio_is_named_and_gives_exit_code_1(folder: Path, tmp_path: Path) -> None:
    inputs = [folder / "0.wav", folder / "bad.wav"]
    done = run("features", folder / "model.nemo", *inputs, "--output", tmp_path / "f", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["written"] == 1
    assert done.stderr.startswith(f"skipped: {folder / 'bad.wav'}: cannot be read as audio")
    again = run("features", folder / "model.nemo", inputs[0], "--output", tmp_path / "f")
    assert again.exit_code == 0
    assert again.stdout.startswith("wrote 0, kept 1, skipped 0;")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["features", "nowhere.nemo", "0.wav", "--output", "f"], "'nowhere.nemo': is not a file"),
        (["features", "model.nemo", "0.wav", "--output", "f", "--layers", "9"], "--layers: there is no layer 9"),
        (["features", "model.nemo", "0.wav", "--output", "f", "--mix", "1"], "--mix: has 1 weights; expected 3"),
        (["features", "model.nemo", "nowhere.json", "--output", "f"], "'nowhere.json': no such file"),
        (["features", "model.nemo", "0.wav", "--output", "f", "--mix", "1,1,1", "--layers", "0"], "--mix, --layers: "),
        (["features", "model.nemo", "0.wav", "--output", "f", "--device", "nonsense"], "--device: is 'nonsense'; "),
        (["features", "model.nemo", "0.wav", "--output", "f", "--device", "cuda:99"], "this machine has cpu"),
        (["features", "model.nemo", "0.wav", "--output", "tones.json/f"], "error: tones.json"),
        (["probe", "model.nemo", "tones.json", "--label", "hight"], "no field 'hight'"),
        (["probe", "model.nemo", "tones.json", "--label", "height", "--device", "nonsense"], "--device: is 'nonsense'"),
        (["convert", "model.nemo", "tones.json/x.nemo"], "error: tones.json"),
        (["data", "make-dummy", "--output", "tones.json/d"], "error: tones.json"),
        (["data", "tar", "tones.json", "--shards", "1", "--output", "tones.json/t"], "error: tones.json"),
    ],
)
def test_wrong_input_gives_one_line_and_exit_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "f").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder of Linux where nobody writes")
def test_a_read_only_folder_gives_one_line(folder: Path) -> None:
    done = run("convert", folder / "model.nemo", "/proc/x.safetensors")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: /proc/x.safetensors: cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_an_available_device_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_device(None) is None
    assert usable_device("cpu") == "cpu"
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert usable_device("cuda:1") == "cuda:1"
    with pytest.raises(NestError, match=r"--device: is 'cuda:2'; this machine has cpu, cuda, cuda:0, cuda:1$"):
        usable_device("cuda:2")


def test_a_probe_of_random_weights_says_so(folder: Path) -> None:
    arguments = ("probe", folder / "model.nemo", folder / "tones.json", "--label", "height", "--random-seeds", 2)
    done = run(*arguments, "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["learned"] is False
    assert (report["labels"], report["test"], report["folds"]) == (2, 20, 5)
    assert "not clearly better than random weights" in report["verdict"]
