"""The commands `nest-ssl data`: their output, exit codes and errors."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from nest_ssl.cli.app import app, data
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=3, val=1, noise=1)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs the command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments: CliRunner().invoke(app, ["data", "check", "--workers", "1", *map(str, arguments)])


@pytest.fixture
def broken(corpus: DummyCorpus, tmp_path: Path) -> Path:
    """The training manifest with absolute paths, and five lines of files that do not exist."""
    rows = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    for row in rows:
        row["audio_filepath"] = str(corpus.train_manifest.parent / row["audio_filepath"])
    rows += [{"audio_filepath": f"missing-{number}-ä.wav", "duration": 1.0} for number in range(5)]
    path = tmp_path / "broken.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_help_shows_kinds_and_an_example(check: Callable[..., Result]) -> None:
    done = check("--help")
    assert done.exit_code == 0
    for word in ("not_finite", "Exit code: 0 no problems, 1 problems, 2 failed.", "Example: nest-ssl data check "):
        assert word in done.stdout


def test_a_set_without_problems_ends_with_exit_code_0(check: Callable[..., Result], corpus: DummyCorpus) -> None:
    done = check(corpus.train_manifest, corpus.val_manifest, "--noise", corpus.noise_manifest, "--sample-rate", 16000)
    assert (done.exit_code, done.stderr) == (0, "")
    assert re.fullmatch(r"checked 5 lines, 0\.0\d hours of audio: 16000 Hz \(5\)\nno problems\n", done.stdout)


def test_problems_end_with_exit_code_1_and_a_summary_by_kind(check: Callable[..., Result], broken: Path) -> None:
    done = check(broken, "--report", "all.jsonl", "--write-clean", "clean.json")
    assert (done.exit_code, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[1] == "5 lines have problems; training skips 5 of them and uses 0:"
    assert re.fullmatch(rf"  unreadable +5  missing-0-ä\.wav: .* \({re.escape(str(broken))}:4\)", lines[2])
    assert lines[5].strip() == "and 2 more"
    assert lines[6:] == ["all problems: all.jsonl", "clean manifest: clean.json"]
    assert len(Path("all.jsonl").read_text().splitlines()) == 5
    assert Path("clean.json").read_bytes() == b"".join(broken.read_bytes().splitlines(keepends=True)[:3])
    assert check(broken, "--ignore", "unreadable").exit_code == 0


def test_the_summary_is_json_on_request(check: Callable[..., Result], broken: Path) -> None:
    done = check(broken, "--json", "--quick")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (found["lines"], found["faulty_lines"], found["problems"]) == (8, 5, {"unreadable": 5})
    assert [example["line"] for example in found["examples"]["unreadable"]] == [f"{broken}:{n}" for n in (4, 5, 6)]


def test_tar_prints_json_on_request(corpus: DummyCorpus, tmp_path: Path) -> None:
    arguments = [corpus.train_manifest, "--output", tmp_path / "tarred", "--shards", 1, "--workers", 1, "--json"]
    done = CliRunner().invoke(app, ["data", "tar", *map(str, arguments)])
    assert done.exit_code == 0, done.stderr
    (made,) = json.loads(done.stdout)["sets"]
    assert (made["utterances"], made["kept_shards"]) == (3, 0)
    assert Path(made["manifest"]).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [1, 2])
def test_the_printed_command_to_train_on_tar_files_runs(
    corpus: DummyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    monkeypatch.chdir(tmp_path)
    output, val = tmp_path / "it's [tarred]", tmp_path / "a & b.json"
    row = json.loads(corpus.val_manifest.read_text())
    row["audio_filepath"] = str(corpus.val_manifest.parent / row["audio_filepath"])
    val.write_text(json.dumps(row))
    rows = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    for one in rows:
        one["audio_filepath"] = str(corpus.train_manifest.parent / one["audio_filepath"])
    (tmp_path / "train.json").write_text("".join(json.dumps(one) + "\n" for one in rows * 2))
    arguments = ["train.json", "--output", output, "--shards", 1, "--workers", 1, "--buckets", buckets, "--val", val]
    done = CliRunner().invoke(app, ["data", "tar", *map(str, arguments)])
    assert done.exit_code == 0, done.stderr
    command = done.stdout[done.stdout.index("  nest-ssl train") :].replace("\\\n", "")
    small = ["model.encoder.n_layers=1", "model.encoder.d_model=16", "model.encoder.n_heads=2", "model.num_classes=32"]
    small += ["model.encoder.subsampling_conv_channels=8", "trainer.max_steps=1", "model.train_ds.batch_size=1"]
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(app, [*words, *small])
    assert done.exit_code == 0, done.stderr


def test_the_tool_for_dummy_data_is_the_same_command_with_another_default_folder(tmp_path: Path) -> None:
    tool = [sys.executable, str(ROOT / "tools" / "prepare_dummy_ssl_data.py")]
    wide = {**os.environ, "COLUMNS": "200"}
    told = subprocess.run([*tool, "--help"], cwd=tmp_path, env=wide, capture_output=True, text=True).stdout
    assert str(ROOT / "data" / "dummy_ssl") in told
    command = typer.main.get_command(data).commands["make-dummy"]  # type: ignore[attr-defined]
    for parameter in command.params:
        assert parameter.opts[0] in told
    few = ["--output", "d", "--train", "2", "--val", "1", "--noise", "1", "--seed", "3", "--force"]
    subprocess.run([*tool, *few], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "d" / "train_manifest.json").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.json"], "nowhere.json: no such file"),
        (["broken.json", "--write-clean", "broken.json"], "broken.json: is one of the manifests to check"),
        (["broken.json", "val.json", "--write-clean", "clean.json"], "--write-clean: 'clean.json' is one file for 2"),
        (["broken.json", "--ignore", "silence"], "--ignore: there is no 'silence' (did you mean 'silent'?)"),
        (["broken.json", "--channel-selector", "left"], "--channel-selector: is 'left'; expected a channel number"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    check: Callable[..., Result], broken: Path, arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = check(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [broken]
