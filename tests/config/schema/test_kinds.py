from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Union

import pytest

from nest_ssl.config.schema.node import check_values
from nest_ssl.errors import ConfigError

HINTS = {
    "steps": int,
    "epochs": Optional[int],  # noqa: UP045 (what Lightning writes)
    "limit": Union[int, float, None],  # noqa: UP007
    "flag": bool,
    "either": int | bool,
    "folder": Union[str, Path, None],  # noqa: UP007
}


@pytest.mark.parametrize(
    "config",
    [{"steps": 3}, {"epochs": None}, {"limit": 1}, {"limit": 0.5}, {"flag": False}, {"either": True}, {"unknown": []}],
)
def test_declared_types_pass(config: dict[str, Any]) -> None:
    check_values(config, HINTS, "trainer")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"steps": "abc"}, "trainer.steps: is 'abc'; expected a whole number"),
        ({"steps": 1e5}, "trainer.steps: is 100000.0; expected a whole number"),
        ({"steps": True}, "trainer.steps: is True; expected a whole number"),
        ({"steps": None}, "trainer.steps: is missing; expected a whole number"),
        ({"epochs": [1]}, r"trainer.epochs: is \[1\]; expected a whole number"),
        ({"limit": "half"}, "trainer.limit: is 'half'; expected a whole number or a number"),
        ({"flag": "maybe"}, "trainer.flag: is 'maybe'; expected true or false"),
    ],
)
def test_other_types_are_refused_with_key_and_expectation(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_values(config, HINTS, "trainer")


def test_types_that_are_not_plain_values_are_not_checked() -> None:
    check_values({"folder": 3}, HINTS, "trainer")
