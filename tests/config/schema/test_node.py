"""A node declares its keys as fields; values of a configuration are read, checked, and named in errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from nest_ssl.config.schema.kinds import LIST
from nest_ssl.config.schema.node import Node, RefusedKey, keys_of, read, read_value, setting
from nest_ssl.errors import ConfigError


@dataclass(frozen=True)
class Inner(Node):
    size: int = setting(2, at_least=1)


@dataclass(frozen=True)
class Example(Node):
    IDLE: ClassVar[tuple[str, ...]] = ("labels", "ema")
    REFUSED: ClassVar[Mapping[str, RefusedKey]] = {
        "turbo": RefusedKey("use fast"),
        "keep": RefusedKey(off=(None, "pass")),
        "ema.enable": RefusedKey(),
    }

    rate: int = setting(at_least=1)
    ratio: float = setting(0.5, above=0)
    gain: float | None = setting(1.0, above=-math.inf)
    label: str | None = None
    mode: Literal["slow", "fast"] = "slow"
    files: list[str] = setting(factory=list, kind=LIST)
    inner: Inner = setting(factory=Inner)


def example(**config: Any) -> Example:
    return read(Example, {"rate": 3, **config}, "model.example")


def test_missing_keys_have_their_defaults() -> None:
    assert example() == Example(rate=3)
    assert example().inner.size == 2


def test_null_is_a_value_if_the_type_allows_it_and_otherwise_the_default() -> None:
    settings = example(ratio=None, gain=None, files=None, inner=None)
    assert (settings.ratio, settings.gain, settings.files, settings.inner) == (0.5, None, [], Inner())


def test_an_integer_is_a_number_and_true_is_not() -> None:
    assert example(ratio=2).ratio == 2
    with pytest.raises(ConfigError, match=r"model\.example\.ratio: is True; expected a number > 0"):
        example(ratio=True)


def test_text_that_looks_like_a_number_is_text() -> None:
    assert example(label=3).label == "3"


def test_every_key_is_known_even_without_an_effect() -> None:
    own = ["rate", "ratio", "gain", "label", "mode", "files", "inner"]
    assert keys_of(Example) == [*own, "labels", "ema", "turbo", "keep"]
    example(labels=["a"], ema={"decay": 0.1, "enable": False}, turbo=False, keep="pass")


def test_a_single_key_is_read_independently_of_the_others() -> None:
    assert read_value(Example, {"mode": "fast", "unknown": 3}, "mode", "model.example") == "fast"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rat": 3}, r"model\.example\.rat: no such option \(did you mean 'rate'\?\)"),
        ({"rate": None}, r"model\.example\.rate: is missing; expected a whole number >= 1"),
        ({"rate": 0}, r"model\.example\.rate: is 0; expected a whole number >= 1"),
        ({"rate": 3.0}, r"model\.example\.rate: is 3\.0; expected a whole number"),
        ({"ratio": 0}, r"ratio: is 0; expected a number > 0"),
        ({"ratio": math.inf}, r"ratio: is inf; expected a number > 0"),
        ({"gain": math.nan}, r"gain: is nan; expected a finite number"),
        ({"mode": "fats"}, r"mode: is 'fats'; expected one of slow, fast \(did you mean 'fast'\?\)"),
        ({"mode": ["fast"]}, r"mode: is \['fast'\]; expected one of slow, fast"),
        ({"files": "a.txt"}, r"files: is 'a\.txt'; expected a list"),
        ({"inner": 3}, r"model\.example\.inner: is 3; expected keys below it"),
        ({"inner": {"size": 0}}, r"model\.example\.inner\.size: is 0; expected a whole number >= 1"),
        ({"inner": {"sise": 0}}, r"model\.example\.inner\.sise: no such option \(did you mean 'size'\?\)"),
        ({"turbo": True}, r"model\.example\.turbo: is True, which is not supported; use fast"),
        ({"keep": "all"}, r"model\.example\.keep: is 'all', which is not supported; leave it out"),
        ({"ema": {"enable": True}}, r"model\.example\.ema\.enable: is True, which is not supported"),
    ],
)
def test_an_invalid_value_is_refused_with_the_full_name_of_its_key(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}" if message.startswith("model") else message):
        example(**config)


def test_a_type_that_no_configuration_can_write_needs_a_kind() -> None:
    @dataclass(frozen=True)
    class Unclear(Node):
        what: object = None

    with pytest.raises(TypeError, match=r"what: .*give setting\(kind=\.\.\.\)"):
        read(Unclear, {}, "unclear")
