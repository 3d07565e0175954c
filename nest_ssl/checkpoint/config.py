"""The configuration that travels with weights: YAML that may come from anywhere, read as plain values and references.

It cannot name Python objects, look into the environment, or grow beyond bounds when it is read or resolved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nest_ssl.checkpoint.inspection import Refused, refuse_sprawl
from nest_ssl.checkpoint.yaml_guard import why_hostile
from nest_ssl.config.targets import TARGETS
from nest_ssl.errors import CheckpointError, one_line

LARGEST_CONFIG = 2**20  # bytes; NEST has 10 kB, with lists of manifests more; the parser reads 50 kB a second
_MOST_VALUES = 10_000  # once references are followed, where there are any; long text counts as several
_MOST_STORED = 100_000  # of a configuration that is stored as values, not as text
_MOST_COPIES = 64  # that text with several references can make of one value
_REFERENCE = re.compile(r"\$\{[\w.\[\]-]+\}")  # to another key; `${oc.env:HOME}` and its like call a resolver

# What NeMo looks for in a configuration that it restores.
NEMO_CLASS = "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel"
_NEMO_VERSION = "3.0.0"
_NEMO_TARGET = {name: path for path, name in reversed(TARGETS.items()) if path.startswith("nemo.")}  # the first path


def parse_config(content: bytes | str, path: Path) -> DictConfig:
    """The `model` node of YAML found in `path`; references between keys stay references."""
    if len(content) > LARGEST_CONFIG:
        raise CheckpointError(f"{path}: refused: its configuration is longer than {LARGEST_CONFIG} bytes")
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    reason = why_hostile(text, aliases=False)
    if reason is not None:
        raise CheckpointError(f"{path}: refused: its configuration: {one_line(reason)}")
    config = OmegaConf.create(text)
    if not isinstance(config, DictConfig):
        raise CheckpointError(f"{path}: its configuration is not a table of settings")
    refuse_evaluation(OmegaConf.to_container(config, resolve=False), path)
    model = config.get("model", config)
    return model if isinstance(model, DictConfig) else config


def config_of_values(values: Any, path: Path) -> DictConfig:
    """The same for settings that are not text but Python's own containers, under the same rules."""
    try:
        refuse_sprawl(values, _MOST_STORED)
    except Refused as error:
        raise CheckpointError(f"{path}: refused: its configuration: {error}") from error
    return parse_config(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), path)


def config_text(config: DictConfig) -> str:
    """The configuration as YAML, resolved, in NeMo's words: its class paths, its name and version of the model."""
    plain: dict[str, Any] = _with_nemo_targets(OmegaConf.to_container(config, resolve=True))
    return OmegaConf.to_yaml(OmegaConf.create({"nemo_version": _NEMO_VERSION, **plain, "target": NEMO_CLASS}))


def resolved(config: DictConfig, path: Path | str) -> DictConfig:
    """A copy in which every reference is replaced by what it stands for."""
    try:
        if "${" in OmegaConf.to_yaml(config):  # hardly ever: NeMo and we save configurations resolved
            refuse_growth(config, path)
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:
        reason = one_line(str(error).splitlines()[0])
        raise CheckpointError(f"{path}: its configuration cannot be resolved: {reason}") from error
    for text in _texts(plain):
        if "${" in text:  # put together from pieces, to be evaluated at the next occasion
            raise CheckpointError(f"{path}: refused: its configuration asks to evaluate {one_line(repr(text))}")
    return OmegaConf.create(plain)


def refuse_evaluation(whole: Any, path: Path | str) -> None:
    """A `${...}` that does more than name another key would read this machine when the configuration is used."""
    texts = [text for text in _texts(whole) if "${" in text]
    for text in texts:
        if "${" in _REFERENCE.sub(" ", text):
            raise CheckpointError(f"{path}: refused: its configuration asks to evaluate {one_line(repr(text))}")
    if math.prod(text.count("${") for text in texts) > _MOST_COPIES:  # each may repeat what the others repeat
        raise CheckpointError(f"{path}: refused: its configuration puts too many references into text")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(item)


def refuse_growth(config: DictConfig, path: Path | str, most: int = _MOST_VALUES) -> None:
    """References to tables that hold references double at every step; count what they make before making it."""
    values = 0
    waiting: list[DictConfig | ListConfig] = [config]
    while waiting:
        node = waiting.pop()
        for value in _values(node):
            values += 1 + (len(value) // 100 if isinstance(value, str) else 0)
            if values > most:
                raise CheckpointError(f"{path}: refused: its configuration unfolds to more than {most} values")
            if isinstance(value, DictConfig | ListConfig):
                waiting.append(value)


def _values(node: DictConfig | ListConfig) -> Iterator[Any]:
    """What a table or list holds, references followed; `???` stands for no value."""
    if isinstance(node, DictConfig):
        return (node[key] for key in node if not OmegaConf.is_missing(node, key))
    return (node[index] for index in range(len(node)) if not OmegaConf.is_missing(node, index))


def _with_nemo_targets(value: Any) -> Any:
    """Our class paths replaced by NeMo's, which both of us read."""
    if isinstance(value, dict):
        converted = {name: _with_nemo_targets(item) for name, item in value.items()}
        if converted.get("_target_") in TARGETS:
            converted["_target_"] = _NEMO_TARGET[TARGETS[converted["_target_"]]]
        return converted
    if isinstance(value, list):
        return [_with_nemo_targets(item) for item in value]
    return value
