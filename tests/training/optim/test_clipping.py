from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from nest_ssl.training.optim import clip_or_drop


def parameters(*gradients: torch.Tensor | None) -> list[Parameter]:
    made = [Parameter(torch.ones(3)) for _ in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient
    return made


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_finite_gradients_are_clipped_as_torch_does(size: float) -> None:
    gradients = [torch.randn(3) * size for _ in range(5)]
    ours, theirs = parameters(*gradients), parameters(*(g.clone() for g in gradients))
    norm, finite = clip_or_drop(ours, 1.0)
    assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(theirs, 1.0))
    assert finite
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))  # type: ignore[arg-type]


def test_without_a_limit_gradients_are_unchanged() -> None:
    (parameter,) = parameters(torch.full((3,), 100.0))
    norm, finite = clip_or_drop([parameter], None)
    assert finite
    assert norm > 100
    assert parameter.grad is not None
    assert parameter.grad.eq(100).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_skipped_step_does_not_change_the_optimizer(bad: float) -> None:
    made = parameters(torch.ones(3), torch.ones(3))
    optimizer = torch.optim.AdamW(made, lr=0.1, weight_decay=0.1)
    optimizer.step()
    before = [made[0].clone(), *(value.clone() for value in optimizer.state[made[0]].values())]
    assert made[1].grad is not None
    made[1].grad[1] = bad
    assert not clip_or_drop(made, 1.0)[1]
    optimizer.step()
    after = [made[0], *optimizer.state[made[0]].values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
