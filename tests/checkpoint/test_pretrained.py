"""Initialisation from other weights: which tensors are loaded, which are not, and which files are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from nest_ssl.checkpoint import initialise_from_pretrained, save_nemo
from nest_ssl.errors import CheckpointError, ConfigError


class Model(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.cfg: DictConfig = OmegaConf.create({"width": width})
        self.encoder = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))
        self.decoder = nn.Linear(width, 1)


def filled(value: float, width: int = 3) -> Model:
    model = Model(width)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


@pytest.fixture
def archive(tmp_path: Path) -> str:
    save_nemo(filled(7.0), tmp_path / "seven.nemo")
    return str(tmp_path / "seven.nemo")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    torch.save({"state_dict": filled(5.0).state_dict(), "epoch": 3}, tmp_path / "five.ckpt")
    return str(tmp_path / "five.ckpt")


def initialised(config: dict[str, Any], model: Model | None = None) -> dict[str, set[float]]:
    """Initialise a model whose weights are ones; return the values in each parameter."""
    model = model or filled(1.0)
    initialise_from_pretrained(model, OmegaConf.create(config))
    return {name: set(parameter.flatten().tolist()) for name, parameter in model.named_parameters()}


def values(config: dict[str, Any]) -> dict[str, float]:
    return {name: next(iter(content)) for name, content in initialised(config).items()}


def test_without_a_key_nothing_changes() -> None:
    assert set(values({"name": "x", "init_from_nemo_model": None}).values()) == {1.0}


def test_a_path_loads_everything(archive: str, checkpoint: str) -> None:
    assert set(values({"init_from_nemo_model": archive}).values()) == {7.0}
    assert set(values({"init_from_ptl_ckpt": checkpoint}).values()) == {5.0}


def test_a_key_that_is_null_is_ignored(archive: str) -> None:
    assert set(values({"init_from_nemo_model": archive, "init_from_ptl_ckpt": None}).values()) == {7.0}


def test_include_takes_names_that_contain_any_part_and_exclude_wins(archive: str) -> None:
    source = {"path": archive, "include": ["encoder", "bias"], "exclude": ["encoder.1"]}
    assert values({"init_from_nemo_model": {"first": source}}) == {
        "encoder.0.weight": 7.0,
        "encoder.0.bias": 7.0,
        "encoder.1.weight": 1.0,
        "encoder.1.bias": 1.0,
        "decoder.weight": 1.0,
        "decoder.bias": 7.0,
    }


def test_several_files_are_loaded_in_their_order(archive: str, tmp_path: Path) -> None:
    save_nemo(filled(9.0), tmp_path / "nine.nemo")
    sources = {"a": {"path": archive}, "b": {"path": str(tmp_path / "nine.nemo"), "include": ["decoder"]}}
    loaded = values({"init_from_nemo_model": sources})
    assert (loaded["encoder.0.weight"], loaded["decoder.weight"]) == (7.0, 9.0)


def test_the_configuration_is_unchanged(archive: str) -> None:
    config = OmegaConf.create({"init_from_nemo_model": {"a": {"path": archive, "include": ["encoder"]}}})
    before = OmegaConf.to_yaml(config)
    initialise_from_pretrained(filled(1.0), config)
    assert OmegaConf.to_yaml(config) == before


def test_one_line_says_what_was_loaded(
    archive: str, caplog: pytest.LogCaptureFixture, our_messages: Callable[[], list[str]]
) -> None:
    caplog.set_level(logging.INFO, "nest_ssl")
    initialised({"init_from_nemo_model": {"a": {"path": archive, "include": ["decoder"]}}})
    (line,) = our_messages()
    assert line == f"initialised 2 of the model's 9 tensors from {archive} (7 in the file not used)"


def test_another_shape_is_reported_and_nothing_is_loaded(archive: str) -> None:
    model = filled(1.0, width=4)
    with pytest.raises(CheckpointError, match=r"encoder\.0\.weight has shape \(3, 2\), in the model \(4, 2\)"):
        initialised({"init_from_nemo_model": archive}, model)
    assert all(bool((parameter == 1.0).all()) for parameter in model.parameters())


def test_excluding_the_tensors_of_another_shape_loads_the_rest(archive: str) -> None:
    model = filled(1.0, width=4)
    source = {"path": archive, "include": ["decoder.bias"]}
    assert initialised({"init_from_nemo_model": {"a": source}}, model)["decoder.bias"] == {7.0}


def test_a_file_that_shares_nothing_with_the_model_is_an_error(archive: str) -> None:
    with pytest.raises(CheckpointError, match="none of its 9 tensors is wanted and in the model"):
        initialised({"init_from_nemo_model": {"a": {"path": archive, "include": ["quantizer"]}}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"init_from_nemo_model": "a", "init_from_ptl_ckpt": "b"}, r"^init_from_nemo_model: given together with"),
        ({"init_from_pretrained_model": "ssl_en_nest"}, r"not downloaded by name; get the \.nemo file and give init_f"),
        ({"init_from_nemo_model": 3}, r"^init_from_nemo_model: 3 is neither a path nor a table of paths"),
        ({"init_from_nemo_model": ["a"]}, r"is neither a path nor a table"),
        ({"init_from_nemo_model": {"path": "a.nemo"}}, r"^init_from_nemo_model\.path: 'a\.nemo' is not a table"),
        ({"init_from_nemo_model": {"a": {"include": []}}}, r"^init_from_nemo_model\.a\.path: is missing"),
        ({"init_from_nemo_model": {"a": {"path": "x", "includes": []}}}, r"\.a\.includes: .*did you mean 'include'"),
        (
            {"init_from_nemo_model": {"a": {"path": "x", "include": "encoder"}}},
            r"\.a\.include: is 'encoder'; expected a list of parts",
        ),
    ],
)
def test_an_invalid_value_is_refused_with_its_key(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        initialise_from_pretrained(filled(1.0), OmegaConf.create(config))
    assert "\n" not in str(caught.value)
