"""The output and the exit codes of `nest-ssl doctor`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nest_ssl.apps.doctor import CheckResult, State
from nest_ssl.apps.doctor.diagnosis import Diagnosis, page
from nest_ssl.apps.doctor.search import Bucket
from nest_ssl.apps.doctor.steps import Outcome, Trial
from nest_ssl.apps.doctor.trial import TrialReport
from nest_ssl.cli.app import app
from nest_ssl.config.command_line import CommandLine
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.shell import quoted
from tests.apps.doctor.machines import made_up

CONFIG = Path(__file__).parents[2] / "config"
SMALL = ["model.encoder.n_layers=1", "model.encoder.d_model=32", "model.encoder.subsampling_conv_channels=8"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["doctor", "--config-name", "nest_tiny", *SMALL, *arguments])


@pytest.fixture
def data(tmp_path: Path) -> None:
    make_dummy_corpus(tmp_path / "data" / "dummy_ssl", train=6, val=2, noise=1)


@pytest.mark.usefixtures("data")
def test_a_machine_that_is_ready_gets_a_page_and_a_command(run: Callable[..., Result], tmp_path: Path) -> None:
    done = run("--no-trial")
    assert done.exit_code == 0, done.stdout
    assert "Training can start: 0 problems" in done.stdout
    assert f"nest-ssl train --config-name nest_tiny {' '.join(SMALL)}\n" in done.stdout
    prose = done.stdout.splitlines()[1:-1]  # without the commands, which are one line each to be copied
    assert max(map(len, prose)) <= 80
    assert done.stdout.isascii() or not str(tmp_path).isascii()  # the page shows this path
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_missing_data_is_exit_code_1_and_says_what_to_do(run: Callable[..., Result]) -> None:
    done = run()
    assert done.exit_code == 1
    assert "Training cannot start: 2 problems" in done.stdout
    assert "nest-ssl data make-dummy" in done.stdout
    assert "No trial: the data cannot be read" in done.stdout


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("name", ["nest_tiny.yaml", "nest_tiny.yml"])
def test_configurations_are_named_as_for_train(run: Callable[..., Result], name: str) -> None:
    done = run("--no-trial", "--config-path", "config", "--config-name", name)  # there is no folder `config` here
    assert done.exit_code == 0, done.output
    assert "nest-ssl train --config-name nest_tiny " in done.stdout  # that folder is the project's own


@pytest.mark.usefixtures("data")
def test_a_folder_of_ones_own_is_in_the_command(run: Callable[..., Result], tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(CONFIG, own)
    done = run("--no-trial", "--config-path", "own", "--config-name", "nest_tiny")
    assert f"nest-ssl train --config-path {quoted(str(own.resolve()))} --config-name nest_tiny " in done.stdout


def test_only_problems_stop() -> None:
    def would_stop(*states: State) -> bool:
        findings = [CheckResult("a", state, "") for state in states]
        return Diagnosis(CommandLine(Path("config"), "nest_tiny", []), made_up(), findings, [], None).would_stop

    assert not would_stop("warning")
    assert would_stop("ok", "problem")


def test_help_says_which_lengths_are_tried(run: Callable[..., Result]) -> None:
    assert "those of the data" in " ".join(run("--help").stdout.replace("│", " ").split())


def test_a_batch_that_was_not_searched_for_is_neither_a_limit_nor_predicted() -> None:
    outcome = Outcome(Trial(2, 4.1), 1.0, peak=2_430_000_000)
    unknown = Bucket(4.1, (outcome,), None, measured=False, saturated=False)
    known = Bucket(12.0, (), 8, measured=False, saturated=False)

    def shown(*buckets: Bucket) -> str:
        report = TrialReport(19 * 10**9, "cpu", "exact", "32", buckets=list(buckets))
        return "\n".join(page(Diagnosis(CommandLine(Path("config"), "nest_tiny", []), made_up(), [], [], report)))

    cut_short = shown(unknown)
    assert " ".join(next(line for line in cut_short.splitlines() if "4.1 s" in line).split()[:4]) == "4.1 s ? 2"
    assert "2.4 GB" in cut_short
    assert "no time to find the most; all that were tried fit (more time: --minutes)" in cut_short
    assert "predicted" not in cut_short
    assert "predicted" in shown(unknown, known)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainer.max_stepps=1"], "did you mean 'trainer.max_steps'"),
        (["--buckets", "5,x"], "--buckets: is '5,x'; expected seconds"),
        (["--config-name", "nowhere"], "--config-name: there is no nowhere.yaml"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    run: Callable[..., Result], arguments: list[str], message: str
) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_json_holds_everything_and_nothing_else_is_printed(run: Callable[..., Result]) -> None:
    done = run("--json", "--minutes", "15", "--buckets", "2")
    found = json.loads(done.stdout)
    assert done.exit_code == int(found["would_stop"])
    assert {*found} == {
        *("schema", "config_name", "overrides", "would_stop", "facts", "machine", "configuration"),
        *("trial", "no_trial", "train"),
    }
    for finding in [*found["machine"], *found["configuration"]]:
        assert {*finding} == {"name", "state", "found", "advice"}
        assert finding["state"] in ("ok", "note", "warning", "problem")
    bucket = found["trial"]["buckets"][0]
    assert bucket["seconds"] == 2
    assert bucket["useful"] >= 1
    assert bucket["largest"] is None or bucket["largest"] >= bucket["useful"]  # None: the time was too short
    assert {"seconds", "peak", "trial", "audio_seconds_per_second"} <= {*bucket["measured"][0]}
