"""Optimizers: their names and options in a configuration, their parameters, refused values, and clipping."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nest_ssl.errors import ConfigError
from nest_ssl.training.optim import build_optimizer, clip_or_drop, parameter_groups
from nest_ssl.training.optim.optimizers import OPTIMIZERS


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.encoder_head = nn.Linear(4, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def test_one_adamw_step_is_the_textbook_update() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    gradient = torch.tensor([0.5, 3.0], dtype=torch.float64)
    optimizer = build_optimizer([weight], {"name": "adamw", "lr": 0.1, "betas": [0.9, 0.98], "weight_decay": 1e-3})
    before = weight.detach().clone()
    weight.grad = gradient
    optimizer.step()
    # After one step, the bias-corrected moments are the gradient and its square.
    expected = before * (1 - 0.1 * 1e-3) - 0.1 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("name", "cls"), OPTIMIZERS.items())
def test_name_and_torch_path_mean_the_same_class(name: str, cls: type[torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.zeros(1))
    assert type(build_optimizer([weight], {"name": name, "lr": 0.1})) is cls
    assert type(build_optimizer([weight], {"_target_": f"torch.optim.{cls.__name__}", "lr": 0.1})) is cls


def test_missing_options_have_the_defaults_of_torch() -> None:
    weight = nn.Parameter(torch.zeros(1))
    assert build_optimizer([weight], {"name": "adamw", "lr": 0.1}).defaults == torch.optim.AdamW([weight], 0.1).defaults


def test_numbers_written_as_strings_are_numbers_and_pairs_are_tuples() -> None:
    config = {"name": "adam", "lr": "5e-1", "weight_decay": "1e-3", "betas": [0.9, "0.98"]}
    group = build_optimizer([nn.Parameter(torch.zeros(1))], config).param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.5, 0.001, (0.9, 0.98))


def test_the_schedule_is_not_an_option_of_the_optimizer() -> None:
    build_optimizer([nn.Parameter(torch.zeros(1))], {"name": "sgd", "lr": 1.0, "sched": {"name": "NoamAnnealing"}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "adamw"}, r"^model\.optim\.lr: missing"),
        ({"name": "adamw", "lr": None}, r"^model\.optim\.lr: missing"),
        ({"name": "adamw", "lr": "high"}, r"^model\.optim\.lr: 'high' is not a number"),
        ({"name": "adamw", "lr": -1.0}, r"^model\.optim: AdamW: Invalid learning rate"),
        ({"name": "adamw", "lr": 1.0, "weight_deacy": 0}, r"weight_deacy: AdamW has no such .*'weight_decay'"),
        ({"name": "adamw", "lr": 1.0, "params": []}, r"params: AdamW has no such option"),
        ({"name": "adamw", "learning_rate": 1.0}, r"^model\.optim\.learning_rate: .*did you mean 'lr'"),
        ({"name": "adamww", "lr": 1.0}, r"^model\.optim\.name: 'adamww' .*did you mean 'adamw'"),
        ({"name": "novograd", "lr": 1.0}, r"'novograd' exists in NeMo only; use 'adamw'"),
        ({"_target_": "os.system", "lr": 1.0}, r"^model\.optim\._target_: 'os.system' is not a known optimizer"),
    ],
)
def test_an_invalid_value_is_refused_with_its_key(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_optimizer([nn.Parameter(torch.zeros(1))], config)
    assert "\n" not in str(caught.value)


def test_all_parameters_including_frozen_ones_are_in_the_order_of_the_model() -> None:
    model = Model()
    (group,) = parameter_groups(model)
    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]


def test_a_named_part_gets_its_own_options_and_the_rest_comes_first() -> None:
    model = Model()
    groups = parameter_groups(model, {"encoder": {"lr": "1e-4"}})
    rest, encoder = build_optimizer(groups, {"name": "sgd", "lr": 0.1}).param_groups
    assert (rest["lr"], encoder["lr"]) == (0.1, 1e-4)
    assert [id(p) for p in encoder["params"]] == [id(p) for p in model.encoder.parameters()]
    # The name `encoder_head` begins with the name of the group, but is not part of it.
    assert [id(p) for p in rest["params"]] == [
        id(p) for m in (model.encoder_head, model.frozen) for p in m.parameters()
    ]


def test_groups_are_checked_like_the_options() -> None:
    model = Model()
    with pytest.raises(ConfigError, match=r"^model\.optim_param_groups\.encodr: .*did you mean 'encoder'"):
        parameter_groups(model, {"encodr": {"lr": 1.0}})
    with pytest.raises(ConfigError, match=r"^model\.optim_param_groups\.learning_rate: SGD has no such option"):
        build_optimizer(parameter_groups(model, {"encoder": {"learning_rate": 1.0}}), {"name": "sgd", "lr": 1.0})


def with_gradients(*gradients: torch.Tensor | None) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.ones(3)) for _ in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient
    return made


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_finite_gradients_are_clipped_as_torch_does(size: float) -> None:
    gradients = [torch.randn(3) * size for _ in range(5)]
    ours, theirs = with_gradients(*gradients), with_gradients(*(g.clone() for g in gradients))
    norm, finite = clip_or_drop(ours, 1.0)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, 1.0))
    assert finite
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))  # type: ignore[arg-type]


def test_without_a_limit_gradients_are_unchanged() -> None:
    (parameter,) = with_gradients(torch.full((3,), 100.0))
    norm, finite = clip_or_drop([parameter], None)
    assert finite
    assert norm > 100
    assert parameter.grad is not None
    assert parameter.grad.eq(100).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_skipped_step_does_not_change_the_optimizer(bad: float) -> None:
    made = with_gradients(torch.ones(3), torch.ones(3))
    optimizer = torch.optim.AdamW(made, lr=0.1, weight_decay=0.1)
    optimizer.step()
    before = [made[0].clone(), *(value.clone() for value in optimizer.state[made[0]].values())]
    assert made[1].grad is not None
    made[1].grad[1] = bad
    assert not clip_or_drop(made, 1.0)[1]
    optimizer.step()
    after = [made[0], *optimizer.state[made[0]].values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
