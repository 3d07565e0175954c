"""What is read from the source of the data's modules is what they do when they run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nest_ssl.apps.reference.checked import declared_options
from nest_ssl.apps.reference.class_options import REQUIRED, Option, as_yaml
from nest_ssl.apps.reference.schema import DATASET, LHOTSE, Schema
from nest_ssl.data import build_dataloader
from nest_ssl.data.checks import CheckedNode
from nest_ssl.data.dummy import make_dummy_corpus

SOURCE = """
CHOICES = ("a", "b")
def build(node, size):
    node.whole("size", least=1)
    node.flag("fast", default=False)
    node.choice("way", CHOICES, default="a")
    node.number("limit", default=None)
    node.whole("buffer", least=0, default=4 * size)
    node.config.get("seed", "random")
def elsewhere(node):
    node.flag("fast", default=True)
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "example.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_calls_say_type_and_default(module: ModuleType) -> None:
    assert declared_options([module]) == {
        "size": Option("int", REQUIRED),
        "fast": Option("bool", "false; true", computed=True),  # two places disagree: to be put into words
        "way": Option("a | b", "a"),
        "limit": Option("float | null", "null"),
        "buffer": Option("int", "4 * size", computed=True),
        "seed": Option(None, "random"),
    }


@pytest.mark.parametrize(
    ("node", "changes"),
    [
        (DATASET, {}),
        (DATASET, {"is_concat": True}),
        (DATASET, {"batch_size": None, "batch_duration": 20.0}),
        (LHOTSE, {"use_lhotse": True, "use_bucketing": True, "num_buckets": 2}),
    ],
    ids=["plain", "concat", "by duration", "lhotse"],
)
def test_defaults_are_those_that_the_loaders_ask_for(
    node: str, changes: dict[str, Any], schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_dummy_corpus(tmp_path, train=4, val=1, noise=1)
    asked: dict[str, Any] = {}
    for method in ("whole", "number", "flag", "choice"):
        monkeypatch.setattr(CheckedNode, method, _recording(getattr(CheckedNode, method), asked))
    config = {"manifest_filepath": str(corpus.train_manifest), "sample_rate": 16000, "batch_size": 2, **changes}
    build_dataloader(config, key="model.train_ds")
    assert len(asked) > 15
    declared = {name: schema[node][name] for name in asked}
    wrong = {
        name: (declared[name].default, default)
        for name, default in asked.items()
        if not declared[name].computed and declared[name].default != default
    }
    assert wrong == {}


def _recording(method: Callable[..., Any], asked: dict[str, Any]) -> Callable[..., Any]:
    def call(node: CheckedNode, name: str, *arguments: Any, **named: Any) -> Any:
        asked[name] = as_yaml(named["default"]) if "default" in named else REQUIRED
        return method(node, name, *arguments, **named)

    return call
