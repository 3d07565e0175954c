"""The reference has exactly the keys that `config/schema/tree.py` accepts, with types and defaults as YAML."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from torch import Tensor

import nest_ssl.training
from nest_ssl.apps.alignment.recorder.callback import RecorderOptions
from nest_ssl.apps.reference.descriptions import ReferenceSection
from nest_ssl.apps.reference.options import (
    AUGMENTOR,
    DATASET,
    LHOTSE,
    REQUIRED,
    TOP_LEVEL,
    TRAINER,
    Option,
    Schema,
    as_yaml,
    of_class,
    preset,
    type_text,
    united,
)
from nest_ssl.config.schema import RunSettings
from nest_ssl.config.schema.node import settings_of
from nest_ssl.config.schema.tree import check_keys, known_keys
from nest_ssl.config.targets import arguments_of
from nest_ssl.data.augmentation import SpeakerNoiseAugmentation
from nest_ssl.errors import ConfigError
from nest_ssl.model.build import PARTS
from nest_ssl.training.optim import build_optimizer


def test_every_accepted_key_has_its_place(schema: Schema) -> None:
    known: Any = known_keys(preset())
    lhotse: Any = known_keys({"model": {"train_ds": {"use_lhotse": True}}})
    accepted = {
        **{f"model.{part}": known["model"][part] for part in PARTS},
        AUGMENTOR: known["model"]["train_ds"]["batch_augmentor"],
        DATASET: known["model"]["train_ds"],
        LHOTSE: lhotse["model"]["train_ds"],
        TRAINER: known["trainer"],
        "exp_manager.checkpoint_callback_params": known["exp_manager"]["checkpoint_callback_params"],
        "exp_manager.early_stopping_callback_params": known["exp_manager"]["early_stopping_callback_params"],
    }
    assert {node: set(keys) - {"_target_"} for node, keys in accepted.items()} == {
        node: set(schema[node]) for node in accepted
    }


@pytest.mark.parametrize("node", [TOP_LEVEL, "model", "exp_manager"])
def test_keys_with_a_table_of_their_own_are_not_listed_twice(node: str, schema: Schema) -> None:
    known: Any = known_keys(preset())
    accepted = known if node == TOP_LEVEL else known[node]
    tables = {name for name, below in accepted.items() if below is not None}
    assert set(schema[node]) == set(accepted) - tables
    as_train_ds = {"validation_ds", "test_ds"}
    assert {name if node == TOP_LEVEL else f"{node}.{name}" for name in tables - as_train_ds} <= schema.keys()


@pytest.mark.parametrize("node", [TOP_LEVEL, "model", "exp_manager", "exp_manager.checkpoint_callback_params"])
def test_what_is_described_is_accepted(node: str, schema: Schema) -> None:
    config: dict[str, Any] = {}
    holder = config
    for name in () if node == TOP_LEVEL else node.split("."):
        holder = holder.setdefault(name, {})
    for key in schema[node]:
        holder[key] = None
        check_keys(config)
    holder["no_such_key"] = None
    with pytest.raises(ConfigError, match="no_such_key"):
        check_keys(config)


def test_the_simpler_augmentor_has_no_key_that_the_other_lacks(schema: Schema) -> None:
    assert set(arguments_of(SpeakerNoiseAugmentation)) < schema[AUGMENTOR].keys()


def test_an_optimizer_has_no_rate_by_default(schema: Schema) -> None:
    assert schema["model.optim"]["lr"].default == "required"
    with pytest.raises(ConfigError, match="lr"):
        build_optimizer([], {"name": "adamw"})


def test_what_the_trainer_is_told_and_what_the_code_asks_of_it_is_described(sections: list[ReferenceSection]) -> None:
    described = {key for section in sections if section.node == TRAINER for row in section.rows for key in row.keys}
    folder = Path(nest_ssl.training.__path__[0])
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    asked = set(re.findall(r'(?:trainer|arguments)\.get\("(\w+)"', source)) - {"name", "project"}  # of wandb
    assert asked | preset()["trainer"].keys() <= described


def test_recordings_have_the_same_keys_and_defaults_where_nemo_runs() -> None:
    """Compare the recorder's own declarations, because it runs without the package."""
    declared = settings_of(RunSettings)
    for field in dataclasses.fields(RecorderOptions):
        assert field.name in declared
        assert field.default in (dataclasses.MISSING, declared[field.name].default), field.name


class Base:
    def __init__(self, rate: float = 0.5, **shared: Any) -> None: ...


class Example(Base):
    def __init__(self, size: int, mode: Literal["a", "b"] = "a", limit: float | None = None, rate: float = 1.0) -> None:
        super().__init__(rate)


def test_arguments_of_a_class() -> None:
    assert of_class(Example) == {
        "size": Option("int", REQUIRED),
        "mode": Option("a | b", "a"),
        "limit": Option("float | null", "null"),
        "rate": Option("float", "1.0"),
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
