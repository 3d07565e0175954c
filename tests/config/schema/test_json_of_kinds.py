"""A kind accepts the same values in Python and in JSON Schema."""

from __future__ import annotations

import math
from dataclasses import MISSING
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from nest_ssl.config.schema import (
    CheckpointSettings,
    DataSettings,
    EarlyStoppingSettings,
    ExperimentSettings,
    LhotseSettings,
    ModelSettings,
    Node,
    OptimizerSettings,
    RunSettings,
    ScheduleSettings,
)
from nest_ssl.config.schema.node import settings_of

NODES = [
    *(RunSettings, ModelSettings, DataSettings, LhotseSettings, OptimizerSettings, ScheduleSettings),
    *(ExperimentSettings, CheckpointSettings, EarlyStoppingSettings),
]
VALUES: list[Any] = [
    *(True, False, -1, 0, 1, 30, -0.5, 0.5, math.inf, "", "text", "trng", "average", "spawn", "a.json, b.json"),
    *([], [1], [0], [2.5, 3], [3, 2], [0.5, 0.5], ["a"], [["a", "b"], "c"], [["a", 1.0]], {}, {"cuts": "a.jsonl"}),
]
# rules that a schema cannot or need not state: order, files, fields in texts, and ways of writing a sum
LOOSER = {"bucket_duration_bins", "manifest_filepath", "noise_manifest", "tarred_audio_filepaths", "shar_path"}


@pytest.mark.parametrize("cls", NODES, ids=lambda cls: cls.__name__)
def test_accepted_values_fit_the_schema_and_others_do_not(cls: type[Node]) -> None:
    for key in settings_of(cls).values():
        schema = Draft202012Validator(key.kind.json)
        for value in VALUES:
            if key.kind.accepts(value):
                assert schema.is_valid(value), (key.name, value)
            elif key.name not in LOOSER and value != math.inf:
                assert not schema.is_valid(value), (key.name, value)


@pytest.mark.parametrize("cls", NODES, ids=lambda cls: cls.__name__)
def test_defaults_are_valid_values_of_their_keys(cls: type[Node]) -> None:
    for key in settings_of(cls).values():
        if key.below is None and key.default is not None and key.default is not MISSING and not callable(key.default):
            assert key.kind.accepts(key.default), key.name
