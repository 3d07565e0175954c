"""Which shipped configuration a run began with."""

from __future__ import annotations

from pathlib import Path

import pytest

from nest_ssl.apps.report.configuration import ABSENT, Change, Preset, changes, nearest_preset, shipped_presets
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from tests.apps.report.conftest import ROOT


@pytest.fixture(scope="module")
def presets() -> list[Preset]:
    return shipped_presets(ROOT / "config")


@pytest.mark.parametrize(
    ("name", "overrides", "preset"),
    [
        ("nest_tiny", ["trainer.max_steps=7", "model.optim.lr=0.5"], "nest_tiny"),
        ("nest_fast-conformer", ["+size=small", "seed=3"], "nest_fast-conformer +size=small"),
        ("nest_fast-conformer_ddp_example", ["trainer.devices=2"], "nest_fast-conformer_ddp_example"),
    ],
)
def test_the_preset_and_what_was_changed_are_found(
    presets: list[Preset], name: str, overrides: list[str], preset: str
) -> None:
    from omegaconf import OmegaConf

    config = OmegaConf.to_container(load_config(CommandLine(ROOT / "config", name, overrides)))
    found = nearest_preset(config, presets)
    assert found is not None
    assert found[0].name == preset
    changed = {override.partition("=")[0] for override in overrides if not override.startswith("+")}
    assert {change.key for change in found[1]} == changed


def test_changes_are_added_removed_and_other_values_in_the_configurations_order() -> None:
    before = {"a": 1, "b": {"c": 2, "d": [1]}, "same": 0, "gone": "x", "null": None}
    after = {"a": 2, "b": {"c": 2, "d": [1, 2]}, "same": 0, "new": {"deep": 1}}
    assert changes(before, after) == [
        Change("a", 1, 2),
        Change("b.d", [1], [1, 2]),
        Change("gone", "x", ABSENT),
        Change("new.deep", ABSENT, 1),
    ]


def test_without_configurations_there_is_no_preset(tmp_path: Path) -> None:
    assert shipped_presets(tmp_path) == []
    assert nearest_preset({"a": 1}, []) is None
