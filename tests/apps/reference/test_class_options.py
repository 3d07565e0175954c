"""Types and defaults of class arguments, as a configuration writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from torch import Tensor

from nest_ssl.apps.reference.class_options import REQUIRED, Option, as_yaml, of_class, of_dataclass, type_text, united


class Base:
    def __init__(self, rate: float = 0.5, **shared: Any) -> None: ...


class Example(Base):
    def __init__(self, size: int, mode: Literal["a", "b"] = "a", limit: float | None = None, rate: float = 1.0) -> None:
        super().__init__(rate)


@dataclass
class Settings:
    folder: Path
    names: list[str] = field(default_factory=list)
    inner: Option = field(default_factory=Option)


def test_arguments_of_a_class() -> None:
    assert of_class(Example) == {
        "size": Option("int", REQUIRED),
        "mode": Option("a | b", "a"),
        "limit": Option("float | null", "null"),
        "rate": Option("float", "1.0"),
    }


def test_fields_of_a_dataclass() -> None:
    assert of_dataclass(Settings) == {
        "folder": Option("str", REQUIRED),
        "names": Option("list", "[]"),
        "inner": Option("mapping", "{}"),
    }


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (bool, "bool"),
        (int | None, "int | null"),
        (Sequence[int] | Sequence[Sequence[int]] | None, "list | null"),
        (Literal["causal"] | Sequence[int], "causal | list"),
        (float | Tensor, "float"),
        (dict[str, Any], "mapping"),
        (Any, None),
        (type(None), "null"),
    ],
    ids=str,
)
def test_types_are_told_in_words_of_a_configuration(hint: Any, text: str | None) -> None:
    assert type_text(hint) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), ((0.9, 0.98), "[0.9, 0.98]"), ("", '""'), ("hann", "hann"), ({}, "{}")],
    ids=str,
)
def test_values_are_yaml(value: Any, text: str) -> None:
    assert as_yaml(value) == text


def test_a_default_that_few_share_says_whose_it_is() -> None:
    owners = {
        "adam": {"decay": Option("float", "0"), "lr": Option("float", "0.1")},
        "sgd": {"decay": Option("float", "0.0"), "mode": Option("min", "min")},
        "adamw": {"decay": Option("float", "0.01"), "mode": Option("max", "max")},
    }
    assert united(owners) == {
        "decay": Option("float", "0; adamw: 0.01"),
        "lr": Option("float", "0.1"),
        "mode": Option("min | max", "sgd: min; adamw: max"),
    }
