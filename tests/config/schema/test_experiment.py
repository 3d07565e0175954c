from __future__ import annotations

from typing import Any

import pytest

from nest_ssl.config.schema import ExperimentSettings, read
from nest_ssl.errors import ConfigError


def read_settings(config: dict[str, Any]) -> ExperimentSettings:
    return read(ExperimentSettings, config, "exp_manager")


def test_missing_keys_have_nemos_defaults() -> None:
    settings = read_settings({})
    assert settings.create_tensorboard_logger
    assert settings.use_datetime_version
    assert not settings.resume_if_exists
    checkpoint = settings.checkpoint_callback_params
    assert (checkpoint.monitor, checkpoint.mode, checkpoint.save_top_k) == ("val_loss", "min", 3)
    assert checkpoint.save_last
    assert checkpoint.save_nemo_on_train_end
    assert not checkpoint.always_save_nemo


def test_null_is_a_value_only_if_the_field_allows_it() -> None:
    settings = read_settings({"files_to_copy": None, "checkpoint_callback_params": {"every_n_epochs": None}})
    assert settings.files_to_copy == []
    assert settings.checkpoint_callback_params.every_n_epochs is None


def test_a_version_that_looks_like_a_number_is_text() -> None:
    assert read_settings({"version": 3}).version == "3"


@pytest.mark.parametrize(
    "node",
    [
        {"create_dllogger_logger": True},
        {"create_neptune_logger": True},
        {"create_clearml_logger": True},
        {"create_straggler_detection_callback": True},
        {"create_fault_tolerance_callback": True},
        {"ema": {"enable": True}},
        {"checkpoint_callback_params": {"filepath": "elsewhere"}},
    ],
)
def test_unsupported_features_are_refused_when_switched_on_and_accepted_when_off(node: dict[str, Any]) -> None:
    def switched_off(value: Any) -> Any:
        return {name: switched_off(below) for name, below in value.items()} if isinstance(value, dict) else False

    read_settings(switched_off(node))
    (name,) = node
    with pytest.raises(ConfigError, match=rf"^exp_manager\.{name}.*: is .*, which is not supported; "):
        read_settings(node)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"checkpoint_callback_params": {"mode": "up"}},
            r"params.mode: is 'up'; expected one of min, max",
        ),
        ({"checkpoint_callback_params": {"save_top_k": "two"}}, r"save_top_k: is 'two'; expected a whole number"),
        ({"resume_if_exists": "sometimes"}, r"resume_if_exists: is 'sometimes'; expected true or false"),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_with_its_key(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(node)
