"""Configurations in files of weights: which references they may contain, and how large they may become."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nest_ssl.checkpoint.config import config_of_values, parse_config, resolved
from nest_ssl.errors import CheckpointError

PATH = Path("model.nemo")


def test_references_to_whole_tables_and_outside_the_model_node_are_resolved() -> None:
    text = "rate: 8\nmodel: {a: '${rate}', b: 'x${.a}{${rate}:.3f}', c: {d: [1, '${model.a}']}, e: '${model.c}', "
    text += "f: '???', g: null}"
    config = resolved(parse_config(text, PATH), PATH)
    table = {"d": [1, 8]}
    assert OmegaConf.to_container(config) == {"a": 8, "b": "x8{8:.3f}", "c": table, "e": table, "f": "???", "g": None}


@pytest.mark.parametrize(
    "value",
    [
        "${oc.env:HOME}",
        "${oc.env:HOME,x}",
        "${${a}:HOME}",
        "${oc.env:${a}}",
        "x ${a} ${oc.env:HOME}",
        r"\${oc.env:HOME}",
    ],
)
def test_only_plain_references_are_allowed(value: str) -> None:
    for read in (config_of_values, lambda values, path: parse_config(OmegaConf.to_yaml(values), path)):
        with pytest.raises(CheckpointError, match=r"^model\.nemo: refused: its configuration asks to evaluate"):
            read({"a": "x", "b": [{"c": value}]}, PATH)


@pytest.mark.parametrize("value", ["${dollar}{oc.env:HOME}", "$${nothing}{oc.env:HOME}", r"\${dollar}"])
def test_resolved_pieces_cannot_form_a_reference_to_the_environment(value: str) -> None:
    config = config_of_values({"dollar": "$", "nothing": "", "a": [value]}, PATH)
    with pytest.raises(CheckpointError, match=r"^model\.nemo: refused: its configuration asks to evaluate"):
        resolved(config, PATH)


def doubling(levels: int, tail: Any) -> dict[str, Any]:
    """Return tables of two references each, so that the first expands to 2 ** levels copies of the last."""
    tables = {f"t{i}": {"l": f"${{t{i + 1}}}", "r": f"${{t{i + 1}}}"} for i in range(levels)}
    return {**tables, f"t{levels}": tail}


@pytest.mark.parametrize(
    "values",
    [
        doubling(40, {"x": 1}),
        {"a": ["${b}", "${b}"], "b": ["${a}", "${a}"]},
        {"long": "x" * 2**16, **{f"k{i}": "y${long}" for i in range(20)}},
    ],
    ids=["doubling", "each other", "long text"],
)
def test_references_that_expand_exponentially_are_refused_quickly(values: dict[str, Any]) -> None:
    config = config_of_values(values, PATH)
    start = time.process_time()
    with pytest.raises(CheckpointError, match=r"^model\.nemo: refused: its configuration unfolds to more than 10000"):
        resolved(config, PATH)
    assert time.process_time() - start < 30


def test_text_that_doubles_at_every_reference_is_refused() -> None:
    values = {f"t{i}": f"${{t{i + 1}}}${{t{i + 1}}}" for i in range(40)}
    with pytest.raises(CheckpointError, match=r"^model\.nemo: refused: its configuration puts too many references"):
        config_of_values({**values, "t40": "x"}, PATH)


@pytest.mark.parametrize("values", [{"a": "${b}", "b": "${a}"}, {"a": "${nowhere.b}"}, {"a": {"b": "${a}"}}])
def test_references_to_missing_keys_give_one_line(values: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"^model\.nemo: its configuration cannot be resolved: ") as caught:
        resolved(config_of_values(values, PATH), PATH)
    assert "\n" not in str(caught.value)


def test_values_that_are_used_twice_are_refused_before_they_are_copied() -> None:
    shared: list[Any] = [1]
    for _ in range(60):
        shared = [shared, shared]
    with pytest.raises(CheckpointError, match=r"aliases|nested"):
        config_of_values({"a": shared}, PATH)


def test_numbers_are_unchanged_after_writing_and_reading() -> None:
    values = {"lr": 1e-06, "big": 1e20, "betas": [0.9, 0.98], "third": 1 / 3, "on": True, "no": "no", "off": None}
    assert OmegaConf.to_container(config_of_values(values, PATH)) == values


def test_a_list_of_many_manifests_is_accepted() -> None:
    manifests = [f"shard_{i}.json" for i in range(15_000)]
    assert (
        config_of_values({"train_ds": {"manifest_filepath": manifests}}, PATH).train_ds.manifest_filepath == manifests
    )
    with pytest.raises(
        CheckpointError, match=r"^model\.nemo: refused: its configuration: it unfolds to more than 100000"
    ):
        config_of_values({"a": [1] * 100_001}, PATH)
