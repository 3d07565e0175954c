"""The tables of docs/recipes.md are computed from its commands, and the estimate of memory equals a real count."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from benchmarks.recipe_costs import (
    BYTES_PER_PARAMETER,
    FRAMEWORK_BYTES,
    PAGE,
    QUICKEST_STEP,
    Recipe,
    costs_row,
    recipes,
    values_row,
)
from nest_ssl.apps.doctor.steps import Steps, Trial
from nest_ssl.config.command_line import CommandLine, preset_folder
from nest_ssl.config.compose import load_config

CHINESE_PAGE = PAGE.with_suffix(".zh.md")


@pytest.fixture(scope="module")
def found() -> list[Recipe]:
    return list(recipes())


@pytest.mark.parametrize("page", [PAGE, CHINESE_PAGE], ids=lambda page: page.name)
def test_the_tables_follow_from_the_commands(found: list[Recipe], page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [recipe.hours for recipe in found] == [1, 10, 100, 1_000, 10_000]
    missing = [row for recipe in found for row in (values_row(recipe), costs_row(recipe)) if row not in text]
    assert missing == [], "python -m benchmarks.recipe_costs prints the tables of this page"


def test_both_languages_print_the_same_recipes(found: list[Recipe]) -> None:
    assert list(recipes(CHINESE_PAGE)) == found


def test_for_more_hours_training_is_longer_and_the_model_larger(found: list[Recipe]) -> None:
    for fewer, more in itertools.pairwise(found):
        assert more.parameters >= fewer.parameters
        assert more.config["trainer"]["max_steps"] > fewer.config["trainer"]["max_steps"]
        assert more.batch_seconds * more.gpus > fewer.batch_seconds * fewer.gpus
    for recipe in found:
        steps, warmup = recipe.config["trainer"]["max_steps"], recipe.config["model"]["optim"]["sched"]["warmup_steps"]
        assert 5 * warmup < steps
        assert 5e-4 < recipe.peak_rate < 2e-3
        assert steps % recipe.config["trainer"]["val_check_interval"] == 0


def test_time_is_that_of_the_operations_but_at_least_that_of_the_quickest_step(found: list[Recipe]) -> None:
    hour, thousand = found[0], found[3]
    steps = hour.config["trainer"]["max_steps"]
    assert hour.hours_of_training("H100") == pytest.approx(steps * QUICKEST_STEP / 3600)
    operations = thousand.config["trainer"]["max_steps"] * thousand.batch_seconds * thousand.flops_per_second
    assert thousand.hours_of_training("RTX 4090") == pytest.approx(operations / (0.1 * 165e12) / 3600)


def test_the_estimated_activations_equal_a_count_on_this_machine() -> None:
    """Count every tensor that the backward pass keeps, except weights, for one clip of 10 s."""
    seconds = 10.0
    line = CommandLine(preset_folder(), "nest_fast-conformer", ["+size=small", "model.numerics=fast"])
    config = OmegaConf.to_container(load_config(line), resolve=True)
    config["model"]["train_ds"]["batch_duration"] = seconds  # type: ignore[index,call-overload]
    recipe = Recipe(1, config)  # type: ignore[arg-type]
    steps = Steps(recipe.config["model"], "cpu")
    weights = {parameter.untyped_storage().data_ptr() for parameter in steps.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # kept, so that no other tensor gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        steps.model.predict_masked(steps._batch(Trial(1, seconds)))
    counted = sum(storage.nbytes() for storage in kept.values())
    assert recipe.memory - FRAMEWORK_BYTES - BYTES_PER_PARAMETER * recipe.parameters == pytest.approx(counted, rel=0.1)
