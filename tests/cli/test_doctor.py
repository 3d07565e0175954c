"""`nest-ssl doctor` as people and scripts use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nest_ssl.cli.app import app
from nest_ssl.data.dummy import make_dummy_corpus

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
    prose = done.stdout.splitlines()[1:-1]  # commands are one line each, to be copied
    assert max(map(len, prose)) <= 80
    assert done.stdout.isascii()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_missing_data_is_exit_code_1_and_says_what_to_do(run: Callable[..., Result]) -> None:
    done = run()
    assert done.exit_code == 1
    assert "Training cannot start: 2 problems" in done.stdout
    assert "nest-ssl data make-dummy" in done.stdout
    assert "No trial: without data" in done.stdout


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
    done = run("--json", "--minutes", "2", "--buckets", "2")
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
    assert bucket["largest"] >= bucket["useful"] >= 1
    assert {"seconds", "peak", "trial", "audio_seconds_per_second"} <= {*bucket["measured"][0]}
