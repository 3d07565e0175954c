"""The keys of the top level and of the model, and their values."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from nest_ssl.config.command_line import preset_folder
from nest_ssl.config.schema.tree import check_keys
from nest_ssl.errors import ConfigError
from nest_ssl.model.build import MODEL_DEFAULTS, MODEL_KEYS


def test_the_model_takes_nemos_keys_and_has_nemos_defaults() -> None:
    nemo = yaml.safe_load((preset_folder() / "nest_fast-conformer.yaml").read_text(encoding="utf-8"))
    assert set(nemo["model"]) <= MODEL_KEYS
    assert MODEL_DEFAULTS == {
        "mask_position": "pre_conv",
        "numerics": "exact",
        "batch_norm_over_padding": True,
        "compile": False,
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"seed": "x"}, "^seed: is 'x'; expected a whole number"),
        ({"init_from_nemo_model": 3}, "^init_from_nemo_model: is 3; expected text or keys below it"),
        (
            {"init_from_pretrained_model": "x"},
            "^init_from_pretrained_model: is 'x', which is not supported; models are",
        ),
        ({"save_max_gb": 0}, "^save_max_gb: is 0; expected a number > 0"),
        ({"model": {"num_books": 0}}, r"^model\.num_books: is 0; expected a whole number >= 1"),
        (
            {"model": {"numerics": "fats"}},
            r"^model\.numerics: is 'fats'; expected one of exact, fast \(did you mean 'fast'",
        ),
        (
            {"model": {"mask_position": "conv"}},
            r"^model\.mask_position: is 'conv'; expected one of pre_conv, post_conv",
        ),
        ({"model": {"optim": "adam"}}, r"^model\.optim: is 'adam'; expected keys below it"),
    ],
)
def test_an_invalid_value_is_named_before_anything_is_made(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_keys(config)


def test_keys_that_other_programs_add_are_accepted() -> None:
    check_keys({"init_strict": False, "model": {"target": "nemo.x", "nemo_version": "3.0.0"}})
