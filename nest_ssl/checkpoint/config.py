"""YAML from anywhere, above all the configuration stored with weights: read as plain values and references.

It cannot name Python objects, read environment variables, or grow without bounds when it is read or resolved. Numbers
that YAML 1.1 reads as something else are refused: `1:30` (90), `017` (15) and `1e999` (infinite). Accepted is what
people rely on: `yes` and `off` are booleans, `1_000` and `0x1F` are integers, `.inf` is infinite, and a date is text.
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

from nest_ssl.checkpoint.inspection import DEEPEST, Refused, refuse_sprawl
from nest_ssl.config.targets import TARGETS
from nest_ssl.errors import CheckpointError, one_line

LARGEST_CONFIG = 2**20  # bytes; NEST's has 10 kB, more with lists of manifests; PyYAML reads 50 kB a second
MOST_VALUES = 10_000  # that references and aliases may unfold to; long text counts as several values
_MOST_STORED = 100_000  # values in a configuration that is stored as Python containers
_MOST_COPIES = 64  # copies of one value that text with several references can produce
_REFERENCE = re.compile(r"\$\{[\w.\[\]-]+\}")  # to another key; others, such as `${oc.env:HOME}`, call a resolver
_BASE_60 = re.compile(r"[-+]?([1-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*)")
_BASE_8 = re.compile(r"[-+]?0[0-7_]*[1-7][0-7_]*")
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?")
_LONGEST = {"0b": 64, "0x": 16, "": 19}  # digits of a 64-bit integer, by base
# Text without any of these holds no misleading number.
_SUSPECT = re.compile(r"[0-9_]:[0-9]|(?<![0-9.])0[0-9_]|[0-9_]{20}|[eE][-+]?[0-9]{3}|0x[0-9a-fA-F_]{17}")

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


def refuse_growth(config: DictConfig, path: Path | str, most: int = MOST_VALUES) -> None:
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


def why_hostile(text: str, *, aliases: bool) -> str | None:
    """Return why YAML from anywhere must not be loaded, None if it may be: aliases, depth, or a misleading number.

    With `aliases`, they are allowed as long as the values that they repeat stay few, and text without anything
    suspicious is not parsed: PyYAML reads 50 kB a second.
    """
    if aliases and not ("&" in text and "*" in text) and not _SUSPECT.search(text):
        return None
    sizes: dict[str | None, int] = {}  # of the value behind each anchor, everything within it included
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # tables and lists: anchor, values so far
    for written, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader), start=1):
        size = 0
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                return "it uses YAML aliases"
            if event.anchor in dict(open_nodes):
                return f"alias *{event.anchor} stands for the node that it is in"
            size = sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.ScalarEvent):
            wrong = _misleading_number(event)
            if wrong is not None:
                return wrong
            size = sizes[event.anchor] = 1 + len(event.value) // 100
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
            sizes[anchor] = size
        open_nodes[-1] = (open_nodes[-1][0], open_nodes[-1][1] + size)
        if aliases and open_nodes[-1][1] > MOST_VALUES + written:
            return f"its aliases unfold to more than {MOST_VALUES} values"
        if len(open_nodes) > DEEPEST + 1:
            return f"it is nested more than {DEEPEST} deep"
    return None


def _misleading_number(event: yaml.ScalarEvent) -> str | None:
    if event.style is not None or event.tag not in (None, "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        return None
    wrong = _wrong(event.value)
    if wrong is None:
        return None
    shown = event.value if len(event.value) <= 30 else f"{event.value[:30]}..."
    return f"line {event.start_mark.line + 1}: {shown} {wrong}"


def _wrong(value: str) -> str | None:
    digits = value.replace("_", "")
    if _BASE_60.fullmatch(value):
        return "is a number of base 60 in YAML; write the number itself, or put text into quotes"
    if _BASE_8.fullmatch(value):
        return "is a number of base 8 in YAML; write it without the leading 0, or put text into quotes"
    integer = _INTEGER.fullmatch(value)
    if integer:
        bare = digits.lstrip("+-")
        base = bare[:2] if bare[:2] in _LONGEST else ""
        count = len(bare.removeprefix(base).lstrip("0"))
        if count > _LONGEST[base]:
            return f"is an integer of {count} digits; put text into quotes"
        return None
    if _FLOAT.fullmatch(value) and any(digit.isdigit() for digit in digits) and math.isinf(float(digits)):
        return "is larger than any number; write .inf if it means infinity"
    return None
