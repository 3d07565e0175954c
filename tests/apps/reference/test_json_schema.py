"""The JSON schemas that editors read: shipped configurations are valid, mistakes are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from nest_ssl.apps.reference.pages import JSON_SCHEMAS

ROOT = Path(__file__).resolve().parents[3]
NEMO_FILE = ROOT / "tests" / "integration" / "data" / "nemo_nest_fast-conformer.yaml"
FILES = [*sorted((ROOT / "config").rglob("*.yaml")), NEMO_FILE]


@pytest.fixture(scope="module", params=JSON_SCHEMAS.values())
def validator(request: pytest.FixtureRequest) -> Draft202012Validator:
    schema = json.loads((ROOT / "docs" / request.param).read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", JSON_SCHEMAS.values())
def test_the_file_is_json_for_any_editor(name: str) -> None:
    """Refuse numbers such as Infinity, which Python writes although JSON does not have them."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"), parse_constant=refuse)


def config(dotted: str, value: Any) -> dict[str, Any]:
    for name in reversed(dotted.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_shipped_files_fit(file: Path, validator: Draft202012Validator) -> None:
    errors = validator.iter_errors(OmegaConf.to_container(OmegaConf.load(file)))
    assert [(list(error.absolute_path), error.message) for error in errors] == []


@pytest.mark.parametrize(
    ("dotted", "good", "bad"),
    [
        ("seed", 3, "three"),
        ("init_from_nemo_model", {"a": {"path": "a.nemo"}}, {"a": {"file": "a.nemo"}}),
        ("trainer.max_steps", 10, "ten"),
        ("model.num_books", "${model.books}", 0),
        ("model.numerics", "fast", "quick"),
        ("model.encoder.n_layers", 17, "many"),
        ("model.encoder.att_context_size", [-1, -1], 3),
        ("model.encoder._target_", "nemo.collections.asr.modules.ConformerEncoder", "os.system"),
        ("model.optim.name", "adamw", 3),
        ("model.optim.sched.warmup_steps", 100, "long"),
        ("model.train_ds.manifest_filepath", "???", 3),
        ("model.train_ds.batch_size", None, 0),
        ("model.train_ds.max_duration", 60, 0),
        ("model.train_ds.use_dali", False, True),
        ("model.train_ds.labels", ["a"], None),
        ("model.validation_ds.batch_augmentor.prob", 0.5, "half"),
        ("exp_manager.checkpoint_callback_params.mode", "max", "up"),
        ("exp_manager.create_clearml_logger", None, True),
    ],
)
def test_a_value_that_the_key_cannot_have_does_not_fit(
    dotted: str, good: Any, bad: Any, validator: Draft202012Validator
) -> None:
    assert validator.is_valid(config(dotted, good))
    assert bad is None or not validator.is_valid(config(dotted, bad))


@pytest.mark.parametrize(
    "node", ["", "trainer", "model", "model.encoder", "model.optim", "model.train_ds", "exp_manager"]
)
def test_an_unknown_key_does_not_fit(node: str, validator: Draft202012Validator) -> None:
    assert not validator.is_valid(config(f"{node}.no_such_key".lstrip("."), 1))


def test_keys_of_lhotse_fit_only_with_it(validator: Draft202012Validator) -> None:
    data = {"cuts_path": "cuts.jsonl.gz"}
    assert validator.is_valid(config("model.train_ds", {**data, "use_lhotse": True}))
    assert not validator.is_valid(config("model.train_ds", data))


def test_keys_are_described_in_the_language_of_the_file(validator: Draft202012Validator) -> None:
    chinese = "中" in json.dumps(validator.schema, ensure_ascii=False)
    seed = validator.schema["properties"]["seed"]
    assert ("Seed" in seed["description"]) is not chinese
    assert seed["default"] is None
