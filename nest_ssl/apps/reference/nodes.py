"""Every node of a configuration and its options: as `config/schema` declares them, or the signature of a class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from typing import Any

import yaml
from lightning.pytorch import Trainer

from nest_ssl.apps.reference.class_options import (
    REQUIRED,
    Option,
    argument_types,
    as_yaml,
    choices_text,
    of_class,
    of_dataclass,
    of_parameters,
    united,
)
from nest_ssl.checkpoint.pretrained import WeightSource
from nest_ssl.config.command_line import DEFAULT_CONFIG, preset_folder
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
from nest_ssl.config.schema.node import RefusedKey, Setting, settings_of
from nest_ssl.config.targets import TARGETS, resolve
from nest_ssl.model.build import PARTS
from nest_ssl.training.optim import optimizers, schedulers

TOP_LEVEL = "top level"
DATASET, LHOTSE = "model.train_ds", "model.train_ds, use_lhotse"
AUGMENTOR = f"{DATASET}.batch_augmentor"
TRAINER = "trainer"
WEIGHTS = "init_from_nemo_model.NAME"
OPTIMIZER, OPTIMIZER_NAMES = "model.optim", "model.optim.name"
SCHEDULER, SCHEDULER_NAMES = "model.optim.sched", "model.optim.sched.name"

Schema = dict[str, dict[str, Option]]


def read_schema() -> Schema:
    """Return node -> key -> option; the names of optimizers and of schedules are nodes too, with values as keys."""
    return {
        TOP_LEVEL: _of_node(RunSettings),
        WEIGHTS: of_dataclass(WeightSource),
        "model": _of_node(ModelSettings),
        DATASET: _of_node(DataSettings),
        LHOTSE: _of_node(LhotseSettings),
        AUGMENTOR: of_class(class_of(AUGMENTOR)),
        **{f"model.{part}": of_class(class_of(f"model.{part}")) for part in PARTS},
        **_optimizers(),
        **_schedulers(),
        TRAINER: of_class(Trainer),
        "exp_manager": _of_node(ExperimentSettings),
        "exp_manager.checkpoint_callback_params": _of_node(CheckpointSettings),
        "exp_manager.early_stopping_callback_params": _of_node(EarlyStoppingSettings),
    }


@cache
def preset() -> dict[str, Any]:
    """Return the default configuration as it is written, with its references (`${...}`)."""
    return yaml.safe_load((preset_folder() / f"{DEFAULT_CONFIG}.yaml").read_text(encoding="utf-8"))


def class_of(node: str) -> type:
    """Return the class that the default configuration names in a node."""
    return resolve(in_preset(node)["_target_"], node)


def in_preset(dotted: str) -> Any:
    """Return a node or value of the default configuration; None if it has none."""
    value: Any = preset()
    for name in dotted.split(".") if dotted != TOP_LEVEL else ():
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def target_paths(node: str) -> list[str]:
    """Return every `_target_` that a node can have."""
    written = in_preset(node)
    if not isinstance(written, Mapping) or "_target_" not in written:
        return []
    return [path for path in TARGETS if issubclass(class_of(node), resolve(path, node))]


def _of_node(cls: type[Node]) -> dict[str, Option]:
    """Return the keys that a node declares, without those that are nodes themselves."""
    return {
        **{key.name: _of_setting(key) for key in settings_of(cls).values() if key.below is None},
        **dict.fromkeys(cls.IDLE, Option(status="idle")),
        **{name: _of_refused(refused) for name, refused in cls.REFUSED.items() if "." not in name},
    }


def _of_setting(key: Setting) -> Option:
    default = key.default() if callable(key.default) else key.default
    name = f"{key.kind.name} | null" if key.null else key.kind.name
    json = {"anyOf": [key.kind.json, {"type": "null"}]}  # null stands for the default
    return Option(name, REQUIRED if default is MISSING else as_yaml(default), json=json)


def _of_refused(refused: RefusedKey) -> Option:
    """Return the values with which a refused key does nothing, null last; empty texts and lists are not listed."""
    plain = [value for value in refused.off if value is not None and value not in ("", [], {})]
    return Option(
        choices_text(plain, optional=True),
        status="refused",
        json={"enum": [*(value for value in plain if value != math.inf), None]},
    )


def _optimizers() -> Schema:
    owners = {
        name: of_parameters(optimizers.optimizer_options(cls), argument_types(cls))
        for name, cls in optimizers.OPTIMIZERS.items()
    }
    shared = {**_of_node(OptimizerSettings), "_target_": Option(choices_text(optimizers.TARGETS))}
    options = {**united(owners), "lr": Option("float", REQUIRED)}  # torch has a default, `build_optimizer` does not
    return {OPTIMIZER: {**shared, **options}, OPTIMIZER_NAMES: _values(owners)}


def _schedulers() -> Schema:
    classes = {**schedulers.SCHEDULES, **schedulers.TORCH_SCHEDULERS}
    owners = {
        name: of_parameters(schedulers.scheduler_options(cls), argument_types(cls)) for name, cls in classes.items()
    }
    return {SCHEDULER: {**_of_node(ScheduleSettings), **united(owners)}, SCHEDULER_NAMES: _values(owners)}


def _values(owners: Mapping[str, Mapping[str, Option]]) -> dict[str, Option]:
    """Return the values of a key; each has the names of its options as its type."""
    return {name: Option(", ".join(own)) for name, own in owners.items()}
