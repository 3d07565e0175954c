"""The fast dropout makes independent decisions at the right rate, and its scaling keeps the mean."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nest_ssl.model.fast.dropout import drop


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_rate_and_the_mean_are_right(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count = 1_000_001  # not a multiple of the vector width
    y = drop(torch.ones(count, dtype=dtype), nn.Dropout(p))
    assert y.dtype == dtype
    y = y.double()
    kept = y != 0
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=5 * (p * (1 - p) / count) ** 0.5 + 2**-16)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert len(y[kept].unique()) == 1


def test_neighbours_are_independent() -> None:
    torch.manual_seed(1)
    kept = (drop(torch.ones(1_000_000), nn.Dropout(0.5)) != 0).float() - 0.5
    for distance in range(1, 9):
        assert abs((kept[:-distance] * kept[distance:]).mean().item()) < 5 * 0.25 / 1000


def test_gradients_are_dropped_where_values_were() -> None:
    torch.manual_seed(2)
    x = torch.randn(100, 7, requires_grad=True)
    y = drop(x, nn.Dropout(0.3))
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y / x).detach())


@pytest.mark.parametrize("module", [nn.Dropout(0.0), nn.Dropout(0.5).eval()])
def test_nothing_is_dropped_at_zero_or_in_evaluation(module: nn.Dropout) -> None:
    x = torch.randn(10)
    assert drop(x, module) is x


def test_everything_is_dropped_at_one() -> None:
    assert (drop(torch.ones(10), nn.Dropout(1.0)) == 0).all()
