"""The keys of a whole configuration; any other key is refused, and the error names the nearest one that exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, get_type_hints

from lightning.pytorch import Trainer

from nest_ssl.config.schema.data import DataSettings, LhotseSettings
from nest_ssl.config.schema.experiment import ExperimentSettings
from nest_ssl.config.schema.node import Node, check_values, dotted, keys_of, read, settings_of
from nest_ssl.config.schema.run import DATA_SETS, ModelSettings, RunSettings
from nest_ssl.config.targets import arguments_of, resolve
from nest_ssl.errors import SYNONYMS, ConfigError
from nest_ssl.model.build import PARTS

# Known keys of a node: None is a value or a node whose own keys are not checked here (the class that takes them does).
Keys = Mapping[str, "Keys | None"]

# names to suggest; nest_ssl/training/optim checks them, which knows the options of each optimizer and schedule
_CHECKED_LATER = (
    *(f"model.optim.{name}" for name in ("name", "lr", "betas", "eps", "weight_decay", "sched")),
    *(f"model.optim.sched.{name}" for name in ("name", "warmup_steps", "warmup_ratio", "min_lr", "max_steps")),
)
_VERY_LIKE = 0.8  # of difflib; 0.6, its default, is enough for the nearest name of all
_NOT_FROM_A_FILE = ("callbacks", "plugins")


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuse the first key of the resolved configuration that is not known, and values of a wrong type.

    The values of other nodes are checked when the part that they describe is made.
    """
    known = known_keys(config)
    _check_node(config, known, prefix="", everywhere=[*_all_keys(known), *_CHECKED_LATER])
    trainer = config.get("trainer") or {}
    for name in _NOT_FROM_A_FILE:
        if trainer.get(name) is not None:
            raise ConfigError(f"trainer.{name}: cannot be set in a configuration; remove it")
    if isinstance(trainer.get("logger"), list | Mapping):
        raise ConfigError("trainer.logger: cannot be described in a configuration; expected true or false")
    check_values(trainer, get_type_hints(Trainer.__init__), "trainer")
    for cls, node, name in ((RunSettings, config, ""), (ModelSettings, config.get("model") or {}, "model")):
        read(cls, {key: node[key] for key in keys_of(cls) if key in node}, name)


def known_keys(config: Mapping[str, Any]) -> Keys:
    """Return the tree of valid keys; those of classes depend on the `_target_`s of this configuration."""
    model = config.get("model")
    return {
        **_leaves(keys_of(RunSettings)),
        "model": _model_keys(model if isinstance(model, Mapping) else {}),
        "trainer": _leaves(arguments_of(Trainer)),
        "exp_manager": _declared_keys(ExperimentSettings),
    }


def _model_keys(model: Mapping[str, Any]) -> Keys:
    parts = {name: _class_keys(model[name], f"model.{name}") for name in PARTS if isinstance(model.get(name), Mapping)}
    datasets = {name: _dataset_keys(model.get(name), f"model.{name}") for name in DATA_SETS}
    return {**_leaves([*keys_of(ModelSettings), *PARTS]), **datasets, **parts}


def _dataset_keys(node: Any, key: str) -> Keys:
    options = node if isinstance(node, Mapping) else {}
    keys = _leaves(keys_of(LhotseSettings if options.get("use_lhotse") else DataSettings))
    augmentor = options.get("batch_augmentor")
    if not isinstance(augmentor, Mapping):
        return keys
    return {**keys, "batch_augmentor": _class_keys(augmentor, f"{key}.batch_augmentor")}


def _class_keys(node: Mapping[str, Any], key: str) -> Keys | None:
    if "_target_" not in node:
        raise ConfigError(f"{key}: has no `_target_` that names a class")
    return _leaves(["_target_", *arguments_of(resolve(str(node["_target_"]), key))])


def _declared_keys(cls: type[Node]) -> Keys:
    below = {name: setting.below for name, setting in settings_of(cls).items()}
    return {name: _declared_keys(node) if (node := below.get(name)) else None for name in keys_of(cls)}


def _leaves(names: Iterable[str]) -> Keys:
    return dict.fromkeys(names)


def _check_node(node: Mapping[str, Any], known: Keys, prefix: str, everywhere: list[str]) -> None:
    for name, value in node.items():
        key = f"{prefix}{name}"
        if name not in known:
            raise ConfigError(f"{key}: no such key{_suggestion(key, everywhere)}")
        below = known[name]
        if below is None or value is None:
            continue
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}: is {value!r}; expected keys below it, such as {key}.{next(iter(below))}")
        _check_node(value, below, f"{key}.", everywhere)


def _all_keys(known: Keys, prefix: str = "") -> Iterator[str]:
    for name, below in known.items():
        yield f"{prefix}{name}"
        if below is not None:
            yield from _all_keys(below, f"{prefix}{name}.")


def _suggestion(key: str, everywhere: Iterable[str]) -> str:
    """Return ` (did you mean 'trainer.max_steps'?)`, or nothing if no known key is like this one.

    In this order: the same name in another node, the name that a synonym stands for, a name of this node that is very
    similar, the most similar name of all. Of several keys with this name, the nearest in the tree is suggested.
    """
    keys_by_name: dict[str, list[str]] = {}
    for known in everywhere:
        keys_by_name.setdefault(known.rpartition(".")[2], []).append(known)
    node, _, name = key.rpartition(".")
    here = [other for other, keys in keys_by_name.items() if dotted(node, other) in keys]
    alike = (*get_close_matches(name.lower(), here, 1, _VERY_LIKE), *get_close_matches(name.lower(), keys_by_name, 1))
    for meant in (name, SYNONYMS.get(name.lower()), *alike):
        if meant in keys_by_name:
            return f" (did you mean {min(keys_by_name[meant], key=lambda other: _distance(key, other))!r}?)"
    return ""


def _distance(key: str, other: str) -> tuple[int, int]:
    """Return how far apart two keys are in the tree: the fewer nodes they share, the further."""
    nodes = zip(key.split(".")[:-1], other.split(".")[:-1], strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], nodes))
    return -shared, other.count(".")
