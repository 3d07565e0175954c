"""Every node of a configuration and its keys: those that `training/keys.py` accepts, and what the code says of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, replace
from functools import cache
from typing import Any

import yaml
from lightning.pytorch import Trainer

from nest_ssl.apps.alignment.recorder import RecorderOptions
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
from nest_ssl.config.command_line import DEFAULT_CONFIG
from nest_ssl.config.presets import preset_folder
from nest_ssl.config.schema import (
    CheckpointSettings,
    DataSettings,
    EarlyStoppingSettings,
    ExperimentSettings,
    LhotseSettings,
    Node,
)
from nest_ssl.config.schema.node import Refused, Setting, settings_of
from nest_ssl.config.schema.tree import Keys, known_keys
from nest_ssl.config.targets import resolve
from nest_ssl.model.build import MODEL_DEFAULTS, PARTS
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
    """Node -> key -> what the code declares; names of optimisers and schedulers are nodes too, values as keys."""
    known: Any = known_keys(preset())
    model = known["model"]
    return {
        TOP_LEVEL: _declared(_leaves(known), of_dataclass(RecorderOptions)),
        WEIGHTS: of_dataclass(WeightSource),
        "model": _declared(_leaves(model), {name: _default(value) for name, value in MODEL_DEFAULTS.items()}),
        DATASET: of_node(DataSettings),
        LHOTSE: of_node(LhotseSettings),
        AUGMENTOR: of_class(class_of(AUGMENTOR)),
        **{f"model.{part}": of_class(class_of(f"model.{part}")) for part in PARTS},
        **_optimizers(),
        **_schedulers(),
        TRAINER: {name: replace(option, type=None) for name, option in of_class(Trainer).items()},  # Lightning's docs
        "exp_manager": of_node(ExperimentSettings),
        "exp_manager.checkpoint_callback_params": of_node(CheckpointSettings),
        "exp_manager.early_stopping_callback_params": of_node(EarlyStoppingSettings),
    }


@cache
def preset() -> dict[str, Any]:
    """The default configuration as it is written, references (`${...}`) included."""
    return yaml.safe_load((preset_folder() / f"{DEFAULT_CONFIG}.yaml").read_text(encoding="utf-8"))


def class_of(node: str) -> type:
    """The class that the default configuration names in a node."""
    return resolve(in_preset(node)["_target_"], node)


def in_preset(dotted: str) -> Any:
    """A node or value of the default configuration; None if it has none."""
    value: Any = preset()
    for name in dotted.split(".") if dotted != TOP_LEVEL else ():
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _leaves(known: Keys) -> list[str]:
    """Keys without a table of their own."""
    return [name for name, below in known.items() if below is None]


def _declared(names: Iterable[str], options: Mapping[str, Option]) -> dict[str, Option]:
    """What is said of these keys; a key of which nothing is said is null unless it is set."""
    return {name: options.get(name, Option()) for name in names}


def _default(value: Any) -> Option:
    return Option("bool" if isinstance(value, bool) else None, as_yaml(value))


def of_node(cls: type[Node]) -> dict[str, Option]:
    """The keys that a node declares, without those that are nodes themselves."""
    return {
        **{key.name: _of_setting(key) for key in settings_of(cls).values() if key.below is None},
        **dict.fromkeys(cls.IDLE, Option()),
        **{name: Option(_off_text(refused)) for name, refused in cls.REFUSED.items() if "." not in name},
    }


def _off_text(refused: Refused) -> str:
    """The values that a refused key can have, null last; an empty text or node is not worth a mention."""
    plain = [value for value in refused.off if value is not None and value not in ("", [], {})]
    return choices_text(plain, optional=None in refused.off)


def _of_setting(key: Setting) -> Option:
    default = key.default() if callable(key.default) else key.default
    return Option(
        f"{key.kind.name} | null" if key.null else key.kind.name, REQUIRED if default is MISSING else as_yaml(default)
    )


def _optimizers() -> Schema:
    owners = {
        name: of_parameters(optimizers.optimizer_options(cls), argument_types(cls))
        for name, cls in optimizers.OPTIMIZERS.items()
    }
    shared = {
        **_declared(optimizers.SHARED_KEYS, {"name": Option("str", optimizers.DEFAULT_OPTIMIZER)}),
        "_target_": Option(choices_text(optimizers.TARGETS)),
    }
    options = {**united(owners), "lr": Option("float", REQUIRED)}  # torch has a default, `build_optimizer` does not
    return {OPTIMIZER: {**shared, **options}, OPTIMIZER_NAMES: _values(owners)}


def _schedulers() -> Schema:
    classes = {**schedulers.SCHEDULES, **schedulers.TORCH_SCHEDULERS}
    owners = {
        name: of_parameters(schedulers.scheduler_options(cls), argument_types(cls)) for name, cls in classes.items()
    }
    stated = {"name": Option("str", REQUIRED), "monitor": Option("str", schedulers.DEFAULT_MONITOR)}
    return {
        SCHEDULER: {**_declared(schedulers.SHARED_KEYS, stated), **united(owners)},
        SCHEDULER_NAMES: _values(owners),
    }


def _values(owners: Mapping[str, Mapping[str, Option]]) -> dict[str, Option]:
    """Values of a key, each with the options that it takes, in place of a type."""
    return {name: Option(", ".join(own)) for name, own in owners.items()}
