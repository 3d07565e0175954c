"""Learning-rate schedules under NeMo's names, equal to the last bit: operations are in NeMo's order.

A schedule has a linear warm-up, then follows `anneal` until `max_steps`, then stays at `min_lr`. Attributes have NeMo's
names because torch stores them in checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class WarmupPolicy(LRScheduler):
    """Linear warm-up, then a constant base rate; the base class of all schedules here."""

    needs_max_steps = False
    ends_at_max_steps = True  # after `max_steps` the rate is `min_lr`
    refuses_lr_below_min_lr = False
    max_steps: Any  # int, or None for a run without end
    base_lrs: list[Any]  # one for each parameter group

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        max_steps: int | None = None,
        warmup_steps: float | None = None,
        warmup_ratio: float | None = None,
        min_lr: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        for group in optimizer.param_groups:
            if self.refuses_lr_below_min_lr and group["lr"] < min_lr:
                raise ValueError(f"lr {group['lr']} is below min_lr {min_lr}")
        if self.needs_max_steps and not max_steps:
            raise ValueError("needs the number of steps; set trainer.max_steps")
        self.max_steps = max_steps
        self.warmup_steps = _phase_steps("warmup", warmup_steps, warmup_ratio, max_steps)
        self.min_lr = min_lr
        super().__init__(optimizer, last_epoch)  # calls `rate`, so all attributes must be set before

    def get_lr(self) -> list[Any]:
        return [self.rate(self.last_epoch, base) for base in self.base_lrs]

    def rate(self, step: int, base: float) -> float:
        """Return the learning rate at optimizer step `step` (from 0) of a parameter group with base rate `base`."""
        if self.warmup_steps > 0 and step <= self.warmup_steps:
            return self.warm_up(step, base)
        if self.max_steps is not None and step > self.max_steps:
            return self.min_lr
        return self.anneal(step, base)

    def warm_up(self, step: int, base: float) -> float:
        return base * ((step + 1) / (self.warmup_steps + 1))

    def anneal(self, step: int, base: float) -> float:
        return base


class NoamAnnealing(WarmupPolicy):
    """`Attention is All You Need` (section 5.3): linear warm-up, then the inverse square root of the step.

    The configured rate is a factor, not the peak. Steps 0 and 1 share one rate, as in NeMo.
    """

    ends_at_max_steps = False
    refuses_lr_below_min_lr = True

    def __init__(self, optimizer: Optimizer, *, d_model: int, **shared: Any) -> None:
        self._normalize = d_model ** (-0.5)
        super().__init__(optimizer, **shared)

    def rate(self, step: int, base: float) -> float:
        step = max(1, step)
        factor = step ** (-0.5)
        if self.warmup_steps > 0:
            factor = min(factor, step * (self.warmup_steps ** (-1.5)))
        rate = base * (self._normalize * factor)
        return max(rate, self.min_lr) if step > self.warmup_steps else rate


class CosineAnnealing(WarmupPolicy):
    """Half a cosine from the base rate to `min_lr`; with `constant_steps`, Megatron's variant with a flat end."""

    needs_max_steps = True
    refuses_lr_below_min_lr = True

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        constant_steps: float | None = None,
        constant_ratio: float | None = None,
        **shared: Any,
    ) -> None:
        max_steps = shared.get("max_steps")
        self.constant_steps = _phase_steps("constant", constant_steps, constant_ratio, max_steps)
        self.decay_steps = (max_steps or 0) - (self.constant_steps + _warm_up_steps(shared))
        super().__init__(optimizer, **shared)

    def warm_up(self, step: int, base: float) -> float:
        if self.constant_steps == 0:
            return super().warm_up(step, base)
        return self.base_lrs[0] * float(step) / float(self.warmup_steps)  # from zero, not from one step

    def anneal(self, step: int, base: float) -> float:
        step_of_anneal = step - self.warmup_steps
        if self.constant_steps == 0:
            factor = 0.5 * (1 + math.cos(math.pi * step_of_anneal / (self.max_steps - self.warmup_steps)))
            return (base - self.min_lr) * factor + self.min_lr
        if step > self.warmup_steps + self.decay_steps:
            return self.min_lr
        factor = 0.5 * (math.cos(math.pi * _share(step_of_anneal, self.decay_steps)) + 1.0)
        return self.min_lr + factor * (self.base_lrs[0] - self.min_lr)  # as in NeMo, of the first group


class WarmupAnnealing(WarmupPolicy):
    """A straight line from the first group's base rate to `min_lr`."""

    needs_max_steps = True

    def anneal(self, step: int, base: float) -> float:
        share = (step - self.warmup_steps) / (self.max_steps - self.warmup_steps)
        return self.min_lr + (1 - share) * (self.base_lrs[0] - self.min_lr)


class SquareAnnealing(WarmupPolicy):
    """The square of the share of steps that remain after the warm-up, at least `min_lr`."""

    needs_max_steps = True

    def __init__(self, optimizer: Optimizer, *, min_lr: float = 1e-5, **shared: Any) -> None:
        super().__init__(optimizer, min_lr=min_lr, **shared)

    def anneal(self, step: int, base: float) -> float:
        steps = self.max_steps - self.warmup_steps
        remaining = steps - (step - self.warmup_steps)
        return max(base * (remaining / steps) ** 2, self.min_lr)


class SquareRootAnnealing(WarmupPolicy):
    """The square root of the share of steps that remain, warm-up included, at least `min_lr`."""

    needs_max_steps = True

    def anneal(self, step: int, base: float) -> float:
        return max(base * ((self.max_steps - step) / self.max_steps) ** 0.5, self.min_lr)


class InverseSquareRootAnnealing(WarmupPolicy):
    """The base rate at the end of the warm-up, then proportional to the inverse square root of the step."""

    def anneal(self, step: int, base: float) -> float:
        return base / ((step + 1) / (self.warmup_steps + 1)) ** 0.5


class PolynomialDecayAnnealing(WarmupPolicy):
    """A power of the share of steps that remain after the warm-up, down to `min_lr`."""

    needs_max_steps = True

    def __init__(self, optimizer: Optimizer, *, power: float = 1.0, cycle: bool = False, **shared: Any) -> None:
        self.power = power
        self.cycle = cycle
        super().__init__(optimizer, **shared)

    def anneal(self, step: int, base: float) -> float:
        steps = self.max_steps - self.warmup_steps
        return _polynomial(step - self.warmup_steps, steps, base, self.min_lr, self.power, self.cycle)


class WarmupHoldPolicy(WarmupPolicy):
    """Linear warm-up, then the base rate for `hold_steps`, then `anneal`."""

    def __init__(
        self, optimizer: Optimizer, *, hold_steps: float | None = None, hold_ratio: float | None = None, **shared: Any
    ) -> None:
        hold = _phase_steps("hold", hold_steps, hold_ratio, shared.get("max_steps"))
        # NeMo includes the warm-up, but only if a hold is configured.
        self.hold_steps = 0 if hold_steps is None and hold_ratio is None else hold + _warm_up_steps(shared)
        super().__init__(optimizer, **shared)

    def rate(self, step: int, base: float) -> float:
        if step < self.hold_steps and (step > self.warmup_steps or self.warmup_steps == 0):
            return base
        return super().rate(step, base)


class WarmupHoldAnnealLinear(WarmupHoldPolicy):
    """After the hold, a straight line to `min_lr`."""

    needs_max_steps = True

    def anneal(self, step: int, base: float) -> float:
        return base - (base - self.min_lr) * _share(step - self.hold_steps, self.max_steps - self.hold_steps)


class WarmupHoldAnnealOneMinusSquareRoot(WarmupHoldPolicy):
    """After the hold, one minus the square root of the share of steps done, at least `min_lr`."""

    needs_max_steps = True

    def anneal(self, step: int, base: float) -> float:
        share = _share(step - self.hold_steps, self.max_steps - self.hold_steps)
        return max(self.min_lr, base * (1 - share**0.5))


class PolynomialHoldDecayAnnealing(PolynomialDecayAnnealing, WarmupHoldPolicy):
    """After the hold, a power of the share of steps that remain, down to `min_lr`."""

    def anneal(self, step: int, base: float) -> float:
        steps = self.max_steps - max(self.warmup_steps, self.hold_steps)
        return _polynomial(step - self.hold_steps, steps, base, self.min_lr, self.power, self.cycle)


class NoamHoldAnnealing(WarmupHoldPolicy):
    """Squeezeformer (section 3.3): after the hold, an inverse power of the step; the base rate is the peak."""

    def __init__(self, optimizer: Optimizer, *, decay_rate: float = 0.5, **shared: Any) -> None:
        if not shared.get("warmup_steps") and not shared.get("warmup_ratio"):
            raise ValueError("needs a warm-up; set warmup_steps or warmup_ratio")
        self.decay_rate = decay_rate
        super().__init__(optimizer, **shared)

    def anneal(self, step: int, base: float) -> float:
        held = self.hold_steps - self.warmup_steps if self.hold_steps > 0 else 0
        peak = max(1, self.warmup_steps**self.decay_rate)
        return max((base * peak) / max(1, (step - held) ** self.decay_rate), self.min_lr)


def _warm_up_steps(options: Mapping[str, Any]) -> Any:
    """Return the length of the warm-up before the base class sets it: its first rate needs every attribute."""
    return _phase_steps("warmup", options.get("warmup_steps"), options.get("warmup_ratio"), options.get("max_steps"))


def _phase_steps(phase: str, steps: float | None, ratio: float | None, max_steps: int | None) -> Any:
    """Return the length of a phase, configured in steps or as a share of the run; 0 if not configured."""
    if steps is not None and ratio is not None:
        raise ValueError(f"has both {phase}_steps and {phase}_ratio; give one")
    if steps is not None:
        if steps < 0:
            raise ValueError(f"{phase}_steps is {steps}; expected 0 or more")
        return steps
    if ratio is None:
        return 0
    if not 0 <= ratio <= 1:
        raise ValueError(f"{phase}_ratio is {ratio}; expected a share between 0 and 1")
    if max_steps is None:
        raise ValueError(f"{phase}_ratio needs the number of steps; set trainer.max_steps")
    return int(ratio * max_steps)


def _share(done: float, steps: float) -> float:
    """Return `done / steps`, or 1 if the earlier phases leave no steps (NeMo divides by zero)."""
    return done / steps if steps else 1.0


def _polynomial(step: int, steps: float, base: float, min_lr: float, power: float, cycle: bool) -> float:
    """Return the polynomial decay from `base` at step 0 to `min_lr` at `steps`; `cycle` repeats it."""
    if cycle:
        steps *= 1.0 if step == 0 else math.ceil(_share(step, steps))
    else:
        step = min(step, steps)  # type: ignore[assignment]
    rate = (base - min_lr) * math.pow(1.0 - _share(step, steps), power)
    return rate + min_lr
