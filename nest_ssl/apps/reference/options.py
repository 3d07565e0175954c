"""Every node of a configuration and its options: as `config/schema` declares them, or the signature of a class.

Types and defaults are text, as a configuration writes them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Any, Literal

import yaml
from lightning.pytorch import Trainer
from torch import Tensor

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
    WeightSource,
)
from nest_ssl.config.schema.node import RefusedKey, Setting, settings_of
from nest_ssl.config.targets import TARGETS, resolve
from nest_ssl.model.build import PARTS
from nest_ssl.training.optim import optimizers, schedulers

REQUIRED = "required"
_ONLY_FOR_CHECKERS = {"Callable": collections.abc.Callable}  # names that torch imports where nothing runs
_NAMES = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str"}
TOP_LEVEL = "top level"
DATASET, LHOTSE = "model.train_ds", "model.train_ds, use_lhotse"
AUGMENTOR = f"{DATASET}.batch_augmentor"
TRAINER = "trainer"
WEIGHTS = "init_from_nemo_model.NAME"
OPTIMIZER, OPTIMIZER_NAMES = "model.optim", "model.optim.name"
SCHEDULER, SCHEDULER_NAMES = "model.optim.sched", "model.optim.sched.name"


@dataclass(frozen=True)
class Option:
    """Type and default, as YAML writes them; no type where the code declares none."""

    type: str | None = None
    default: str = "null"
    status: Literal["read", "idle", "refused"] = "read"
    json: Mapping[str, Any] | None = field(default=None, compare=False)  # JSON Schema, if it says more than the type


Schema = dict[str, dict[str, Option]]


def read_schema() -> Schema:
    """Return node -> key -> option; the names of optimizers and of schedules are nodes too, with values as keys."""
    return {
        TOP_LEVEL: _of_node(RunSettings),
        WEIGHTS: _of_node(WeightSource),
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
        " | ".join([*map(as_yaml, plain), "null"]),
        status="refused",
        json={"enum": [*(value for value in plain if value != math.inf), None]},
    )


def _optimizers() -> Schema:
    owners = {
        name: of_parameters(optimizers.optimizer_options(cls), argument_types(cls))
        for name, cls in optimizers.OPTIMIZERS.items()
    }
    shared = {**_of_node(OptimizerSettings), "_target_": Option(" | ".join(map(as_yaml, optimizers.TARGETS)))}
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


def of_class(cls: type) -> dict[str, Option]:
    """Return the arguments of a class."""
    return of_parameters(inspect.signature(cls).parameters, argument_types(cls))


def of_parameters(parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]) -> dict[str, Option]:
    """Return the options of these arguments and their declared types."""
    return {
        name: Option(
            type_text(hints.get(name)), REQUIRED if parameter.default is parameter.empty else as_yaml(parameter.default)
        )
        for name, parameter in parameters.items()
    }


def argument_types(cls: type) -> dict[str, Any]:
    """Return the declared types of the arguments of a class and of its base classes."""
    types_of: dict[str, Any] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(object)]):
        types_of |= typing.get_type_hints(base.__init__, localns=_ONLY_FOR_CHECKERS)  # type: ignore[misc]
    return types_of


def united(owners: Mapping[str, Mapping[str, Option]]) -> dict[str, Option]:
    """Merge the options of several classes; a default that only some of them have carries their names."""
    options: dict[str, Option] = {}
    for name in dict.fromkeys(name for own in owners.values() for name in own):
        takers = {owner: own[name] for owner, own in owners.items() if name in own}
        kinds = [kind for option in takers.values() for kind in (option.type or "").split(" | ") if kind]
        options[name] = Option(" | ".join(dict.fromkeys(kinds)) or None, _common_first(takers))
    return options


def as_yaml(value: Any) -> str:
    """Return a value as a configuration writes it, on one line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    if dataclasses.is_dataclass(value) or isinstance(value, Mapping):
        return "{}"
    if value == math.inf:
        return ".inf"
    return f'"{value}"' if isinstance(value, str) and not _is_plain(value) else str(value)


def _is_plain(text: str) -> bool:
    """Return whether YAML reads the text unchanged without quotes."""
    try:
        return yaml.safe_load(text) == text
    except yaml.YAMLError:
        return False


def same_value(one: str, other: str) -> bool:
    """Return whether two texts are the same value: `0` is `0.0`."""
    return _number(one) == _number(other)


def type_text(hint: Any) -> str | None:
    """Return `int | null` or the values of a choice; None for a type that a configuration cannot write."""
    names = list(dict.fromkeys(_type_names(hint)))
    if not names or "any" in names:
        return None
    return " | ".join([name for name in names if name != "null"] + [name for name in names if name == "null"])


def _type_names(hint: Any) -> Iterable[str]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _type_names(member)
    elif origin is Literal:
        yield from map(as_yaml, typing.get_args(hint))
    elif hint in _NAMES:
        yield _NAMES[hint]
    elif hint is Tensor:  # torch takes a learning rate as one too; a configuration cannot
        return
    elif isinstance(origin or hint, type):
        yield _class_name(origin or hint)
    else:
        yield "any"


def _class_name(cls: type) -> str:
    if issubclass(cls, PurePath):
        return "str"
    if dataclasses.is_dataclass(cls) or issubclass(cls, collections.abc.Mapping):
        return "mapping"
    return "list" if issubclass(cls, collections.abc.Sequence) else "any"


def _common_first(takers: Mapping[str, Option]) -> str:
    """Return `0; adamw: 0.01`: the default that most have, then the others with names."""
    of_default: dict[str, list[str]] = {}
    for owner, option in takers.items():
        same = next((known for known in of_default if same_value(known, option.default)), option.default)
        of_default.setdefault(same, []).append(owner)
    common = max(of_default, key=lambda default: len(of_default[default]))
    if len(of_default) > 1 and len(of_default[common]) == 1:
        common = ""
    others = [f"{', '.join(names)}: {default}" for default, names in of_default.items() if default != common]
    return "; ".join([common, *others] if common else others)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
