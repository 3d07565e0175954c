"""Problems that would make a run useless are found before its first step and before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.errors import ConfigError
from nest_ssl.testing import manifests_of
from nest_ssl.training import checks as run_checks
from nest_ssl.training.checks import check_configuration, check_model
from nest_ssl.training.run import main
from tests.parity.variants import CONFIG as PARITY_CONFIG
from tests.parity.variants import VARIANTS

CONFIG = Path(__file__).resolve().parents[2] / "config"
POOLED = [f"model.encoder.reduction{option}" for option in ("=pooling", "_position=0", "_factor=2")]


def _warns(*_: object) -> Iterator[str]:
    yield "the data is odd"


def _refuses(*_: object) -> Iterator[str]:
    raise ConfigError("model.x: would spoil the run")
    yield


def test_a_warning_of_two_checks_is_printed_once(
    caplog: pytest.LogCaptureFixture, our_messages: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checks, "CONFIGURATION_CHECKS", [_warns, _warns])
    with caplog.at_level(logging.WARNING, "nest_ssl"):
        check_configuration(OmegaConf.create(), [])
    assert our_messages() == ["the data is odd"]


def test_only_the_first_process_warns(our_messages: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checks, "CONFIGURATION_CHECKS", [_warns])
    monkeypatch.setattr(run_checks.rank_zero_only, "rank", 1)
    check_configuration(OmegaConf.create(), [])
    assert not our_messages()


@pytest.mark.parametrize("checks", ["CONFIGURATION_CHECKS", "DATA_CHECKS"])
def test_a_refused_run_prints_one_line_and_writes_nothing(
    checks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make_dummy_corpus(tmp_path / "data", train=4, val=2, noise=2)
    monkeypatch.setattr(run_checks, checks, [_refuses])
    monkeypatch.chdir(tmp_path)
    noise = f"model.validation_ds.noise_manifest={corpus.noise_manifest}"
    assert main(["--config-name", "nest_tiny", *manifests_of(corpus), noise], config_dir=CONFIG) == 2
    assert capsys.readouterr().err == "error: model.x: would spoil the run\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    "overrides",
    [
        POOLED,
        ["model.quantizer.combine_time_steps=4", "model.loss.combine_time_steps=4"],
        ["model.quantizer.combine_time_steps=16", "model.loss.combine_time_steps=16"],
        ["model.encoder.subsampling_factor=6", "model.preprocessor.pad_to=6"],
        ["model.encoder.subsampling_factor=6", "model.preprocessor.pad_to=6", "model.numerics=fast"],
    ],
    ids=" ".join,
)
def test_targets_that_would_be_shifted_are_refused(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(overrides, config_dir=CONFIG) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "targets would be shifted in time; set model.quantizer.combine_time_steps=" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", VARIANTS)
def test_configurations_that_nemo_trains_are_accepted(name: str) -> None:
    changes = VARIANTS[name].overrides(Path("dummy"), Path("mixed"))
    sizes = [OmegaConf.load(CONFIG / "size" / f"{change[6:]}.yaml") for change in changes if change[:6] == "+size="]
    plain = OmegaConf.from_dotlist([change for change in changes if change[0] not in "+~"])
    cfg = OmegaConf.merge(OmegaConf.load(PARITY_CONFIG), *sizes, plain)
    assert isinstance(cfg, DictConfig)
    for removed in (change[1:] for change in changes if change[0] == "~"):
        node, _, key = removed.rpartition(".")
        del OmegaConf.select(cfg, node)[key]
    OmegaConf.resolve(cfg)
    assert list(check_model(cfg, [])) == []
