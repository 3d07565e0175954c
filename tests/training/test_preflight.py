"""What would spoil a run is found before its first step, and before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.errors import ConfigError
from nest_ssl.testing import manifests_of
from nest_ssl.training import preflight
from nest_ssl.training.preflight import check_configuration
from nest_ssl.training.run import main

CONFIG = Path(__file__).resolve().parents[2] / "config"


def _warns(*_: object) -> Iterator[str]:
    yield "the data is odd"


def _refuses(*_: object) -> Iterator[str]:
    raise ConfigError("model.x: would spoil the run")
    yield


def test_a_warning_that_two_checks_agree_on_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "CONFIGURATION_CHECKS", [_warns, _warns])
    with caplog.at_level(logging.WARNING, "nest_ssl"):
        check_configuration(OmegaConf.create())
    assert [record.getMessage() for record in caplog.records] == ["the data is odd"]


def test_only_the_first_process_warns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "CONFIGURATION_CHECKS", [_warns])
    monkeypatch.setattr(preflight.rank_zero_only, "rank", 1)
    check_configuration(OmegaConf.create())
    assert not caplog.records


@pytest.mark.parametrize("checks", ["CONFIGURATION_CHECKS", "DATA_CHECKS"])
def test_a_refused_run_says_one_line_and_writes_nothing(
    checks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make_dummy_corpus(tmp_path / "data", train=4, val=2, noise=2)
    monkeypatch.setattr(preflight, checks, [_refuses])
    monkeypatch.chdir(tmp_path)
    noise = f"model.validation_ds.noise_manifest={corpus.noise_manifest}"
    assert main(["--config-name", "nest_tiny", *manifests_of(corpus), noise], config_dir=CONFIG) == 1
    assert capsys.readouterr().err == "error: model.x: would spoil the run\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
