"""Schedulers by name, NeMo's and torch's, in the form that Lightning expects."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from nest_ssl.config.schema import ScheduleSettings, keys_of
from nest_ssl.errors import ConfigError, nearest
from nest_ssl.training.optim import schedules
from nest_ssl.training.optim.optimizers import read_options

SCHEDULES: dict[str, type[schedules.WarmupPolicy]] = {
    cls.__name__: cls
    for cls in (
        schedules.NoamAnnealing,
        schedules.NoamHoldAnnealing,
        schedules.CosineAnnealing,
        schedules.WarmupPolicy,
        schedules.WarmupHoldPolicy,
        schedules.WarmupAnnealing,
        schedules.WarmupHoldAnnealLinear,
        schedules.WarmupHoldAnnealOneMinusSquareRoot,
        schedules.SquareAnnealing,
        schedules.SquareRootAnnealing,
        schedules.InverseSquareRootAnnealing,
        schedules.PolynomialDecayAnnealing,
        schedules.PolynomialHoldDecayAnnealing,
    )
}
TORCH_SCHEDULERS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        lr_scheduler.StepLR,
        lr_scheduler.ExponentialLR,
        lr_scheduler.ReduceLROnPlateau,
        lr_scheduler.CyclicLR,
    )
}
_STEPPED_EACH_EPOCH = ("ExponentialLR", "ReduceLROnPlateau")
_NOT_FROM_CONFIG = ("self", "optimizer", "max_steps", "scale_fn")


def build_scheduler(
    optimizer: Optimizer,
    config: Mapping[str, Any] | None,
    *,
    max_steps: int | None,
    key: str = "model.optim.sched",
) -> dict[str, Any] | None:
    """Return Lightning's entry for the scheduler of the `sched` node, None without one; `max_steps` is the run's."""
    if config is None:
        return None
    name = config.get("name")
    cls = SCHEDULES.get(str(name)) or TORCH_SCHEDULERS.get(str(name))
    if cls is None:
        known = [*SCHEDULES, *TORCH_SCHEDULERS]
        raise ConfigError(f"{key}.name: {name!r} is not one of {', '.join(known)}{nearest(str(name), known)}")
    options = _options(cls, config, key)
    if cls.__name__ in SCHEDULES:
        options["max_steps"] = config.get("max_steps") if max_steps is None else max_steps
    try:
        scheduler = cls(optimizer, **options)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{key}: {name} {error}") from error
    return {
        "scheduler": scheduler,
        "interval": "epoch" if name in _STEPPED_EACH_EPOCH else "step",
        "frequency": 1,
        "monitor": config.get("monitor") or ScheduleSettings.monitor,
        "reduce_on_plateau": isinstance(scheduler, lr_scheduler.ReduceLROnPlateau),
    }


def scheduler_options(cls: type) -> dict[str, inspect.Parameter]:
    """Return the options of a scheduler that a configuration can set, those of its base classes included."""
    return {
        parameter.name: parameter
        for base in reversed(cls.__mro__[: cls.__mro__.index(object)])
        for parameter in inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
        if parameter.name not in _NOT_FROM_CONFIG and parameter.kind is not parameter.VAR_KEYWORD
    }


def _options(cls: type, config: Mapping[str, Any], key: str) -> dict[str, Any]:
    known = scheduler_options(cls)
    given = {name: value for name, value in config.items() if name not in keys_of(ScheduleSettings)}
    options = read_options(given, known, cls.__name__, key)
    for name, parameter in known.items():
        if parameter.default is parameter.empty and options.get(name) is None:
            raise ConfigError(f"{key}.{name}: missing; {cls.__name__} needs it")
    if cls.__name__ in SCHEDULES:
        for name, value in options.items():
            if isinstance(value, str):
                raise ConfigError(f"{key}.{name}: {value!r} is not a number")
    return options
