"""The scheduler for Lightning: its class, how often it steps, and refused values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nest_ssl.errors import ConfigError
from nest_ssl.training.optim import build_scheduler
from nest_ssl.training.optim.schedulers import SCHEDULES


def optimizer(lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def test_no_schedule_means_no_scheduler() -> None:
    assert build_scheduler(optimizer(), None, max_steps=10) is None


@pytest.mark.parametrize(
    ("config", "interval", "on_plateau"),
    [
        ({"name": "NoamAnnealing", "d_model": 4}, "step", False),
        ({"name": "StepLR", "step_size": 2}, "step", False),
        ({"name": "ExponentialLR", "gamma": 0.5}, "epoch", False),
        ({"name": "ReduceLROnPlateau", "patience": 1, "mode": "min"}, "epoch", True),
    ],
)
def test_torchs_epoch_schedulers_step_each_epoch_all_others_each_step(
    config: dict, interval: str, on_plateau: bool
) -> None:
    entry = build_scheduler(optimizer(), config, max_steps=10)
    assert entry is not None
    assert type(entry["scheduler"]).__name__ == config["name"]
    assert (entry["interval"], entry["frequency"], entry["reduce_on_plateau"]) == (interval, 1, on_plateau)
    assert entry["monitor"] == "val_loss"


def test_the_length_of_the_run_takes_precedence_over_that_of_the_schedule() -> None:
    config = {"name": "WarmupAnnealing", "max_steps": 7}
    assert build_scheduler(optimizer(), config, max_steps=20)["scheduler"].max_steps == 20  # type: ignore[index]
    assert build_scheduler(optimizer(), config, max_steps=None)["scheduler"].max_steps == 7  # type: ignore[index]


def test_numbers_written_as_strings_are_numbers() -> None:
    config = {"name": "NoamAnnealing", "d_model": 4, "warmup_steps": "10", "min_lr": "1e-6"}
    scheduler = build_scheduler(optimizer(), config, max_steps=None)["scheduler"]  # type: ignore[index]
    assert (scheduler.warmup_steps, scheduler.min_lr) == (10, 1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_state_is_plain_data_for_safe_checkpoints(name: str) -> None:
    config = {"name": name, "warmup_steps": 2, **({"d_model": 4} if name == "NoamAnnealing" else {})}
    state = build_scheduler(optimizer(), config, max_steps=10)["scheduler"].state_dict()  # type: ignore[index]
    values = [item for value in state.values() for item in (value if isinstance(value, list) else [value])]
    assert all(isinstance(value, (int, float, bool)) for value in values)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"^model\.optim\.sched\.name: None is not one of NoamAnnealing"),
        ({"name": "NoamAnealing"}, r"did you mean 'NoamAnnealing'"),
        ({"name": "T5InverseSquareRootAnnealing"}, r"did you mean 'InverseSquareRootAnnealing'"),
        ({"name": "NoamAnnealing"}, r"^model\.optim\.sched\.d_model: missing; NoamAnnealing needs it"),
        ({"name": "NoamAnnealing", "d_model": 4, "warmup": 3}, r"sched\.warmup: .*did you mean 'warmup_steps'"),
        ({"name": "NoamAnnealing", "d_model": 4, "min_lr": "low"}, r"sched\.min_lr: 'low' is not a number"),
        ({"name": "NoamAnnealing", "d_model": 4, "min_lr": 0.9}, r"lr 0\.5 is below min_lr 0\.9"),
        ({"name": "CosineAnnealing", "min_lr": 0.9}, r"lr 0\.5 is below min_lr 0\.9"),
        ({"name": "WarmupPolicy", "warmup_steps": 1, "warmup_ratio": 0.1}, r"both warmup_steps and warmup_ratio"),
        ({"name": "WarmupPolicy", "warmup_ratio": 0.1}, r"warmup_ratio needs the number of steps; set trainer\.max"),
        ({"name": "WarmupPolicy", "warmup_steps": -1}, r"warmup_steps is -1; expected 0 or more"),
        ({"name": "WarmupHoldPolicy", "hold_steps": 1, "hold_ratio": 0.1}, r"both hold_steps and hold_ratio"),
        ({"name": "WarmupHoldPolicy", "warmup_steps": 1, "hold_ratio": 0.1}, r"hold_ratio needs the number of steps"),
        ({"name": "CosineAnnealing"}, r"CosineAnnealing needs the number of steps; set trainer\.max_steps"),
        ({"name": "NoamHoldAnnealing"}, r"NoamHoldAnnealing needs a warm-up"),
        ({"name": "StepLR"}, r"sched\.step_size: missing; StepLR needs it"),
        ({"name": "ReduceLROnPlateau", "mode": "sideways"}, r"ReduceLROnPlateau .*sideways"),
    ],
)
def test_an_invalid_value_is_refused_with_its_key(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_scheduler(optimizer(), config, max_steps=None)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("model.optim.sched")


def test_a_ratio_above_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"warmup_ratio is 1\.5; expected a share between 0 and 1"):
        build_scheduler(optimizer(), {"name": "WarmupPolicy", "warmup_ratio": 1.5}, max_steps=10)
