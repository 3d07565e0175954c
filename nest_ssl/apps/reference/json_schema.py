"""The configuration as JSON Schema (draft 2020-12): editors use it to complete keys and to mark mistakes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from nest_ssl.apps.reference.descriptions import Language, ReferenceSection
from nest_ssl.apps.reference.options import (
    AUGMENTOR,
    DATASET,
    LHOTSE,
    OPTIMIZER,
    REQUIRED,
    SCHEDULER,
    TOP_LEVEL,
    TRAINER,
    WEIGHTS,
    Option,
    Schema,
    target_paths,
)
from nest_ssl.config.schema import DATA_SETS
from nest_ssl.model.build import PARTS

_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "list": "array", "mapping": "object"}
# `${model.sample_rate}` stands for another key, `???` for a value that the command line gives
_REFERENCE = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}
_EXPERIMENT = "exp_manager"


def render_json_schema(sections: Sequence[ReferenceSection], schema: Schema, language: Language) -> str:
    """Return the text of the schema file, with descriptions in this language."""
    words = {
        (section.node, key): row.meaning[language].strip()
        for section in sections
        for row in section.rows
        for key in row.keys
    }
    return json.dumps(_Writer(schema, words).configuration(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True)
class _Writer:
    schema: Schema
    words: Mapping[tuple[str, str], str]

    def configuration(self) -> dict[str, Any]:
        """Return the schema of a whole configuration; a file can leave out any key."""
        datasets = {name: {"$ref": "#/$defs/dataset"} for name in DATA_SETS}
        weights = {"type": "object", "additionalProperties": self.node(WEIGHTS)}
        parts = {part: self.node(f"model.{part}") for part in PARTS}
        optim = self.node(OPTIMIZER, sched=self.node(SCHEDULER))
        callbacks = ("checkpoint_callback_params", "early_stopping_callback_params")
        top = self.node(
            TOP_LEVEL,
            defaults={"type": "array"},  # of Hydra
            hydra={"type": "object"},
            init_from_nemo_model={"anyOf": [{"type": ["string", "null"]}, weights]},
            init_from_ptl_ckpt={"anyOf": [{"type": ["string", "null"]}, weights]},
            model=self.node("model", **datasets, **parts, optim=optim),
            trainer=self.node(TRAINER),
            exp_manager=self.node(_EXPERIMENT, **{name: self.node(f"{_EXPERIMENT}.{name}") for name in callbacks}),
        )
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "nest_ssl",
            **top,
            "$defs": {
                "reference": _REFERENCE,
                "dataset": {
                    "if": {"properties": {"use_lhotse": {"const": True}}, "required": ["use_lhotse"]},
                    "then": self.dataset(LHOTSE),
                    "else": self.dataset(DATASET),
                },
            },
        }

    def dataset(self, node: str) -> dict[str, Any]:
        """Return the schema of a data set, with or without lhotse."""
        return self.node(node, batch_augmentor=self.node(AUGMENTOR))

    def node(self, name: str, **below: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema of a node; the keys in `below` are nodes themselves and can be null."""
        properties = {key: self.key(name, key, option) for key, option in self.schema[name].items()}
        for key, node in below.items():
            properties[key] = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/reference"}, node]}
        targets = target_paths(name)
        if targets:
            properties["_target_"] = {"enum": targets}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def key(self, node: str, key: str, option: Option) -> dict[str, Any]:
        """Return the values, the meaning and the default of a key."""
        values = of_type(option.type) if option.json is None else dict(option.json)
        described = {"description": self.words[node, key]} if (node, key) in self.words else {}
        if option.default != REQUIRED and ";" not in option.default:
            described["default"] = yaml.safe_load(option.default)
        return {**described, **({"anyOf": [values, {"$ref": "#/$defs/reference"}]} if values else {})}


def of_type(text: str | None) -> dict[str, Any]:
    """Return the schema of `int | null` or of the values of a choice; without a type, any value fits."""
    if text is None:
        return {}
    return {"anyOf": [_of_name(name) for name in text.split(" | ")]}


def _of_name(name: str) -> dict[str, Any]:
    return {"type": _TYPES[name]} if name in _TYPES else {"const": yaml.safe_load(name)}
