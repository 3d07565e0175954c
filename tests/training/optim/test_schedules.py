"""Schedules are compared with curves that are computed here from their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from nest_ssl.training.optim.schedulers import build_scheduler

BASE = 0.5
WARMUP, HOLD, TOTAL = 8, 10, 40
AFTER_HOLD = WARMUP + HOLD


def rates(name: str, steps: int = TOTAL + 5, max_steps: int | None = TOTAL, **options: object) -> list[float]:
    """Return the learning rate of every optimizer step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=BASE)
    entry = build_scheduler(optimizer, {"name": name, **options}, max_steps=max_steps)
    assert entry is not None
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        entry["scheduler"].step()
    return seen


def warmed(step: int) -> float:
    return BASE * (step + 1) / (WARMUP + 1)


def left(step: int, start: int = WARMUP) -> float:
    """Return the share of the annealing that remains."""
    return (TOTAL - step) / (TOTAL - start)


CURVES: dict[str, tuple[dict, Callable[[int], float], float]] = {
    # name: options, rate after warm-up and hold, rate after the end
    "WarmupPolicy": ({}, lambda t: BASE, 0.01),
    "CosineAnnealing": ({}, lambda t: 0.01 + (BASE - 0.01) * (1 + math.cos(math.pi * (1 - left(t)))) / 2, 0.01),
    "WarmupAnnealing": ({}, lambda t: 0.01 + (BASE - 0.01) * left(t), 0.01),
    "SquareAnnealing": ({}, lambda t: max(0.01, BASE * left(t) ** 2), 0.01),
    "SquareRootAnnealing": ({}, lambda t: max(0.01, BASE * math.sqrt(1 - t / TOTAL)), 0.01),
    "InverseSquareRootAnnealing": ({}, lambda t: BASE * math.sqrt((WARMUP + 1) / (t + 1)), 0.01),
    "PolynomialDecayAnnealing": ({"power": 3.0}, lambda t: 0.01 + (BASE - 0.01) * left(t) ** 3, 0.01),
}
HOLD_CURVES: dict[str, tuple[dict, Callable[[int], float], float]] = {
    "WarmupHoldPolicy": ({}, lambda t: BASE, 0.01),
    "WarmupHoldAnnealLinear": ({}, lambda t: 0.01 + (BASE - 0.01) * left(t, AFTER_HOLD), 0.01),
    "WarmupHoldAnnealOneMinusSquareRoot": (
        {},
        lambda t: max(0.01, BASE * (1 - math.sqrt(1 - left(t, AFTER_HOLD)))),
        0.01,
    ),
    "PolynomialHoldDecayAnnealing": (
        {"power": 2.0},
        lambda t: 0.01 + (BASE - 0.01) * left(t, AFTER_HOLD) ** 2,
        0.01,
    ),
    "NoamHoldAnnealing": ({"decay_rate": 1.0}, lambda t: max(0.01, BASE * WARMUP / (t - HOLD)), 0.01),
}


@pytest.mark.parametrize("name", CURVES)
def test_warm_up_then_curve_then_minimum(name: str) -> None:
    options, curve, end = CURVES[name]
    expected = [warmed(t) if t <= WARMUP else curve(t) if t <= TOTAL else end for t in range(TOTAL + 5)]
    assert rates(name, warmup_steps=WARMUP, min_lr=0.01, **options) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", HOLD_CURVES)
def test_warm_up_then_hold_then_curve_then_minimum(name: str) -> None:
    options, curve, end = HOLD_CURVES[name]
    expected = [
        warmed(t) if t <= WARMUP else BASE if t < AFTER_HOLD else curve(t) if t <= TOTAL else end
        for t in range(TOTAL + 5)
    ]
    actual = rates(name, warmup_steps=WARMUP, hold_steps=HOLD, min_lr=0.01, **options)
    assert actual == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [*CURVES, *HOLD_CURVES])
def test_a_ratio_is_a_number_of_steps(name: str) -> None:
    assert rates(name, warmup_ratio=0.2) == rates(name, warmup_steps=8)


def test_only_square_annealing_has_a_minimum_by_default() -> None:
    assert rates("SquareAnnealing")[-1] == 1e-5
    assert rates("SquareRootAnnealing")[-1] == 0.0


def test_noam_rises_linearly_peaks_at_the_warm_up_and_falls_with_the_root() -> None:
    actual = rates("NoamAnnealing", d_model=16, warmup_steps=WARMUP, steps=200)
    expected = [BASE / 4 * min(max(1, t) ** -0.5, max(1, t) * WARMUP**-1.5) for t in range(200)]
    assert actual == pytest.approx(expected, rel=1e-12)
    assert actual[0] == actual[1]  # as in NeMo
    assert max(actual) == actual[WARMUP] == pytest.approx(BASE / 4 / math.sqrt(WARMUP))


def test_noam_respects_the_minimum_only_after_the_warm_up() -> None:
    actual = rates("NoamAnnealing", d_model=16, warmup_steps=WARMUP, min_lr=0.03, steps=200)
    assert actual[1] < 0.03
    assert actual[-1] == 0.03


def test_noam_without_warm_up_starts_at_its_peak() -> None:
    assert rates("NoamAnnealing", d_model=16, steps=4) == pytest.approx(
        [BASE / 4 * x for x in (1, 1, 2**-0.5, 3**-0.5)]
    )


def test_noam_needs_no_length_of_the_run() -> None:
    assert rates("NoamAnnealing", d_model=16, warmup_steps=4, max_steps=None) == rates(
        "NoamAnnealing", d_model=16, warmup_steps=4
    )


def test_cosine_with_constant_steps_starts_at_zero_and_ends_flat() -> None:
    actual = rates("CosineAnnealing", warmup_steps=WARMUP, constant_steps=HOLD, min_lr=0.01)
    decay = TOTAL - WARMUP - HOLD
    assert actual[: WARMUP + 1] == pytest.approx([BASE * t / WARMUP for t in range(WARMUP + 1)])
    middle = [0.01 + (BASE - 0.01) * (1 + math.cos(math.pi * t / decay)) / 2 for t in range(decay + 1)]
    assert actual[WARMUP : WARMUP + decay + 1] == pytest.approx(middle)
    assert set(actual[WARMUP + decay + 1 :]) == {0.01}


@pytest.mark.parametrize("name", ["PolynomialHoldDecayAnnealing", "WarmupHoldAnnealLinear"])
def test_a_hold_that_fills_the_run_ends_at_the_minimum(name: str) -> None:
    actual = rates(name, warmup_steps=WARMUP, hold_steps=TOTAL - WARMUP, min_lr=0.01)
    assert actual[TOTAL - 1] == BASE
    assert actual[TOTAL] == pytest.approx(0.01)


def test_polynomial_cycle_repeats_on_a_stretched_axis() -> None:
    actual = rates("PolynomialDecayAnnealing", cycle=True)
    assert actual[: TOTAL + 1] == pytest.approx([BASE * (1 - t / TOTAL) for t in range(TOTAL + 1)])


def test_a_resumed_schedule_continues_where_it_stopped() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=BASE)
    config = {"name": "CosineAnnealing", "warmup_steps": 3}
    first = build_scheduler(optimizer, config, max_steps=TOTAL)["scheduler"]  # type: ignore[index]
    for _ in range(10):
        optimizer.step()
        first.step()
    fresh = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=BASE)
    second = build_scheduler(fresh, config, max_steps=TOTAL)["scheduler"]  # type: ignore[index]
    second.load_state_dict(first.state_dict())
    for scheduler, own in ((first, optimizer), (second, fresh)):
        own.step()
        scheduler.step()
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
