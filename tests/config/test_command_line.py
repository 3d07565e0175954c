"""`--help` lists every configuration and size with the first words of its file, and loads no large library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nest_ssl.config.command_line import parse_command_line

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"


def _help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as left:
        parse_command_line(["--help"], folder, "nest-ssl train")
    assert left.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_configuration_and_size_with_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _help(capsys, monkeypatch, CONFIG)
    choices = text.partition("--config-name=NAME")[2]
    listed = re.findall(r"(?m)^  (\S+)  +(\S.*)$", choices)
    names, sizes = ({path.stem for path in CONFIG.glob(pattern)} for pattern in ("*.yaml", "size/*.yaml"))
    assert {name for name, _ in listed} == names | sizes
    assert listed[0][0] == "nest_fast-conformer"
    assert [name for name, _ in listed if name in sizes] == ["small", "medium", "large", "xlarge", "xxlarge"]


def test_the_comments_of_the_sizes_are_true() -> None:
    large = (CONFIG / "nest_fast-conformer.yaml").read_text(encoding="utf-8")
    for path in (CONFIG / "size").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        layers, width = map(int, re.findall(r"(\d+) layers of width (\d+)", text)[0])
        encoder = yaml.safe_load(text)["model"]["encoder"]
        assert (layers, width) == (encoder["n_layers"], encoder["d_model"]), path.name
        table = re.search(rf"(?m)^#   {path.stem} .* (\S+ [MG])(?: |$)", large)
        assert table is not None
        assert f"# {table[1]} parameters: " in text


def test_a_new_file_is_listed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("# For the cluster of v1.2 nodes. More of it here.\nname: mine\n")
    (tmp_path / "silent.yaml").write_text("name: silent\n")
    text = _help(capsys, monkeypatch, tmp_path)
    assert re.search(r"(?m)^  mine +For the cluster of v1\.2 nodes\.$", text)
    assert re.search(r"(?m)^  silent\s*$", text)


@pytest.mark.parametrize("script", ["train.py", "train_with_saver.py"])
def test_the_scripts_show_help_without_loading_large_libraries(script: str) -> None:
    heavy = "{'torch', 'numpy', 'lightning', 'hydra'} & set(sys.modules)"
    code = (
        f"import atexit, runpy, sys; sys.argv = [{script!r}, '--help']; "
        f"atexit.register(lambda: print('heavy:', {heavy})); runpy.run_path({script!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nest_tiny" in done.stdout
    assert done.stdout.rstrip().endswith("heavy: set()")
