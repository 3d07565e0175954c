"""The configuration stored with weights: YAML that may come from anywhere, read as plain values and references.

It cannot name Python objects, read environment variables, or grow without bounds when it is read or resolved.
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

LARGEST_CONFIG = 2**20  # bytes; NEST's has 10 kB, more with lists of manifests; PyYAML reads 50 kB a second
_MOST_VALUES = 10_000  # after references are resolved; long text counts as several values
_MOST_STORED = 100_000  # values in a configuration that is stored as Python containers
_MOST_COPIES = 64  # copies of one value that text with several references can produce
_REFERENCE = re.compile(r"\$\{[\w.\[\]-]+\}")  # to another key; others, such as `${oc.env:HOME}`, call a resolver

# NeMo expects these in a configuration that it restores.
NEMO_CLASS = "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel"
_NEMO_VERSION = "3.0.0"
_NEMO_TARGET = {name: path for path, name in reversed(TARGETS.items()) if path.startswith("nemo.")}  # the first path


def parse_config(content: bytes | str, path: Path) -> DictConfig:
    """Parse YAML that was read from `path` and return its `model` node; references between keys stay references."""
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
    """Apply the rules of `parse_config` to a configuration that is stored as Python containers."""
    try:
        refuse_sprawl(values, _MOST_STORED)
    except Refused as error:
        raise CheckpointError(f"{path}: refused: its configuration: {error}") from error
    return parse_config(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), path)


def config_text(config: DictConfig) -> str:
    """Return the resolved configuration as YAML for NeMo: with NeMo's class paths, model class and version."""
    plain: dict[str, Any] = _with_nemo_targets(OmegaConf.to_container(config, resolve=True))
    return OmegaConf.to_yaml(OmegaConf.create({"nemo_version": _NEMO_VERSION, **plain, "target": NEMO_CLASS}))


def resolved(config: DictConfig, path: Path | str) -> DictConfig:
    """Return a copy in which every reference is replaced by its value."""
    try:
        if "${" in OmegaConf.to_yaml(config):  # rare: NeMo and nest_ssl save resolved configurations
            refuse_growth(config, path)
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:
        reason = one_line(str(error).splitlines()[0])
        raise CheckpointError(f"{path}: its configuration cannot be resolved: {reason}") from error
    for text in _texts(plain):
        if "${" in text:  # assembled from pieces; the next resolution would evaluate it
            raise CheckpointError(f"{path}: refused: its configuration asks to evaluate {one_line(repr(text))}")
    return OmegaConf.create(plain)


def refuse_evaluation(whole: Any, path: Path | str) -> None:
    """Refuse a `${...}` that does more than name another key: resolving it could read this machine's environment."""
    texts = [text for text in _texts(whole) if "${" in text]
    for text in texts:
        if "${" in _REFERENCE.sub(" ", text):
            raise CheckpointError(f"{path}: refused: its configuration asks to evaluate {one_line(repr(text))}")
    if math.prod(text.count("${") for text in texts) > _MOST_COPIES:  # each copy may be copied again by the others
        raise CheckpointError(f"{path}: refused: its configuration puts too many references into text")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(item)


def refuse_growth(config: DictConfig, path: Path | str, most: int = _MOST_VALUES) -> None:
    """Refuse references that repeat tables with references in them; count the values before they are created."""
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
    """Yield the values of a table or list with references resolved, without missing ones (`???`)."""
    if isinstance(node, DictConfig):
        return (node[key] for key in node if not OmegaConf.is_missing(node, key))
    return (node[index] for index in range(len(node)) if not OmegaConf.is_missing(node, index))


def _with_nemo_targets(value: Any) -> Any:
    """Return a copy with our class paths replaced by NeMo's, which NeMo and nest_ssl both accept."""
    if isinstance(value, dict):
        converted = {name: _with_nemo_targets(item) for name, item in value.items()}
        if converted.get("_target_") in TARGETS:
            converted["_target_"] = _NEMO_TARGET[TARGETS[converted["_target_"]]]
        return converted
    if isinstance(value, list):
        return [_with_nemo_targets(item) for item in value]
    return value
