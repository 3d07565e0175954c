"""The command `nest-ssl data stats`: its report, the commands that it prints, and its errors."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from nest_ssl.apps.datatools.stats import Histogram
from nest_ssl.cli.app import app
from nest_ssl.cli.stats import histogram
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from tests.waiting import PATIENCE, random_draws, wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=24, val=2, noise=1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def stats(run: Callable[..., Result]) -> Callable[..., Result]:
    return lambda *arguments: run("data", "stats", "--workers", "1", *arguments)


@pytest.fixture
def manifest(corpus: DummyCorpus, tmp_path: Path) -> Path:
    """A manifest of three speakers and two problems, in a folder whose name must be quoted in a shell."""
    rows = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["audio_filepath"] = str(corpus.train_manifest.parent / row["audio_filepath"])
        row["speaker"] = f"说话人 {number % 3}"
    rows += [{"audio_filepath": "missing.wav", "duration": 2.0}, rows[0]]
    path = tmp_path / 'it\'s "a" folder [=]' / "train.json"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_help_shows_definitions_and_an_example(stats: Callable[..., Result]) -> None:
    done = stats("--help")
    assert done.exit_code == 0
    for words in ("40 dB or more below", "RMS", "Exit code: 0 done", "Example: nest-ssl data stats "):
        assert words in done.stdout


@pytest.mark.parametrize("depth", [[], ["--quick"], ["--manifest-only"]], ids=str)
def test_a_report_fits_a_terminal(stats: Callable[..., Result], manifest: Path, depth: list[str]) -> None:
    done = stats(manifest, *depth)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("26 lines, 25 files, ")
    assert not [line for line in lines if len(line) > 80 and str(manifest) not in line and "/" not in line]
    for words in ("durations (s)", "speaker (3 values)", "说话人 1", "suggested", "nest-ssl train"):
        assert words in done.stdout
    assert ("loudness" in done.stdout) == (not depth)
    assert ("  unreadable          1  missing.wav: no such file" in done.stdout) == (depth != ["--manifest-only"])


SMALL = [
    *("model.encoder.n_layers=1", "model.encoder.d_model=32", "model.encoder.subsampling_conv_channels=8"),
    *("model.num_classes=32", "trainer.max_steps=1"),
]


def printed(report: str) -> list[list[str]]:
    """Return the commands that a report prints, each as the words that a shell would make of it."""
    text = report.replace("\\\n", "")
    return [shlex.split(line) for line in text.splitlines() if line.startswith("  nest-ssl ")]


@pytest.mark.slow
@pytest.mark.parametrize("channels", [[], ["--channel-selector", "average"]], ids=str)
def test_the_printed_command_trains(
    run: Callable[..., Result], stats: Callable[..., Result], manifest: Path, corpus: DummyCorpus, channels: list[str]
) -> None:
    val = manifest.with_name("val & more.json")
    shutil.copytree(corpus.val_manifest.parent, manifest.parent / "corpus")
    val.write_text(corpus.val_manifest.read_text().replace('filepath": "', 'filepath": "corpus/'))
    noise = manifest.parent / "corpus" / corpus.noise_manifest.name
    report = stats(manifest, "--val", val, "--noise", noise, "--batch-size", 4, *channels).stdout
    ((program, *words),) = printed(report)
    assert program == "nest-ssl"
    done = run(*words, "--config-name", "nest_tiny", *SMALL)
    assert done.exit_code == 0, done.stderr


@pytest.mark.slow
def test_without_a_validation_set_the_printed_commands_split_and_train(
    run: Callable[..., Result], stats: Callable[..., Result], manifest: Path
) -> None:
    split, train = printed(stats(manifest, "--batch-size", 4).stdout)
    assert split[-2:] == ["--group-by", "speaker"]
    done = run(*split[1:])
    assert done.exit_code == 0, done.stderr
    (trains,) = printed(done.stdout)
    for words in (train, trains):
        done = run(*words[1:], "--config-name", "nest_tiny", *SMALL)
        assert done.exit_code == 0, done.stderr


def test_validation_utterances_that_are_trained_on_are_reported(stats: Callable[..., Result], manifest: Path) -> None:
    val = manifest.with_name("val.json")
    val.write_bytes(b"".join([*manifest.read_bytes().splitlines(keepends=True)[:3], b"no line\n"]))
    for depth in ([], ["--quick"], ["--manifest-only"]):
        report = " ".join(stats(manifest, "--val", val, *depth).stdout.split())
        assert "3 of 3 validation utterances are also trained on" in report
    found = json.loads(stats(manifest, "--val", val, "--manifest-only", "--json").stdout)["overlap"]
    assert (found["lines"], found["of"]) == (3, 3)


def test_json_holds_everything_and_nothing_else_is_printed(stats: Callable[..., Result], manifest: Path) -> None:
    done = stats(manifest, "--json")
    found = json.loads(done.stdout)
    assert (found["lines"], found["entries"], found["files"], found["depth"]) == (26, 26, 25, "samples")
    assert found["problems"]["problems"] == {"unreadable": 1, "duplicate": 1}
    assert found["duration"]["count"] == sum(found["duration_histogram"]["counts"]) == 25
    assert {share["value"] for share in found["fields"]["speaker"]} == {"说话人 0", "说话人 1", "说话人 2"}
    assert found["overrides"][-1] == f"model.train_ds.num_buckets={found['advice']['batches']['num_buckets']}"
    assert found["loudness"]["max"] < 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.json"], "nowhere.json: no such file"),
        (["empty.json"], "empty.json: has no entries"),
        (["empty.json", "--manifest-only"], "empty.json: has no entries"),
        (["empty.json", "--quick", "--manifest-only"], "--quick and --manifest-only: give one of them"),
        (["empty.json", "--channel-selector", "left"], "--channel-selector: is 'left'; expected a channel number"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    stats: Callable[..., Result], tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty.json").touch()
    done = stats(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty.json"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "nothing to suggest: the manifest gives no durations"),
        ({"duration": 90.0}, "all clips are outside of the limits"),
        ({"duration": 9.0, "shard_id": 0}, "members of tar files, which are not read here: --manifest-only"),
    ],
)
def test_the_report_says_why_nothing_is_suggested(
    stats: Callable[..., Result], tmp_path: Path, row: dict, words: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"audio_filepath": "a.wav", **row}))
    done = stats("a.json")
    assert (done.exit_code, words in done.stdout) == (0, True)
    assert "batch_duration" not in done.stdout


def test_control_characters_in_values_change_neither_terminal_nor_columns(
    stats: Callable[..., Result], tmp_path: Path
) -> None:
    values = ["plain", "a\x1b[2Jb\nc", "说话" * 20, "\ud800"]
    rows = [{"audio_filepath": "a.wav", "duration": 2.0, "speaker": value} for value in 2 * values]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = stats("a.json", "--manifest-only")
    assert "\x1b" not in done.stdout
    table = [line for line in done.stdout.splitlines() if "25.0%" in line]
    assert len(table) == 4
    assert {cell_len(line) for line in table} == {58}


def test_a_terminal_without_unicode_gets_ascii(manifest: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nest_ssl", "data", "stats", str(manifest), "--workers", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    # on a slow machine, lines of progress appear
    unexpected = [line for line in done.stderr.splitlines() if not line.startswith(b"read ")]
    assert (done.returncode, unexpected) == (0, [])
    assert done.stdout.isascii()
    assert b" ####" in done.stdout
    assert b"\\u8bf4" in done.stdout  # characters that ASCII does not have are escaped


def test_bars_are_in_proportion() -> None:
    lines = histogram(Histogram(width=0.2, counts=(0, 100, 50, 0, 1)))[2:]
    assert [line.count("#") for line in lines] == [40, 20, 0, 1]  # a single line is still visible
    assert [line.split()[1] for line in lines] == ["0.2", "0.4", "0.6", "0.8"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows has no signals to a group of processes")
def test_an_interruption_ends_all_processes_and_leaves_no_files(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", np.random.default_rng(0).standard_normal(60 * 16000) / 9, 16000)
    rows = [{"audio_filepath": "long.wav", "offset": n / 1000, "duration": 50.0} for n in range(9000)]
    (tmp_path / "m.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = sorted(tmp_path.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-m", "nest_ssl", "data", "stats", "m.json", "--workers", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that the signal reaches every process of the command, like Ctrl-C in a terminal
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: not children.exists() or len(children.read_text().split()) >= 2, "for two workers")
    time.sleep(random_draws().uniform(0, 0.5))  # interrupt at a random moment: workers may start or work
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=PATIENCE) == (b"", b"")
    assert process.returncode == 130
    assert sorted(tmp_path.iterdir()) == before
