"""Optimizers by name: torch's classes, with the parameters in NeMo's order and number; and clipping of gradients."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn, optim
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from nest_ssl.config.schema import OptimizerSettings, keys_of
from nest_ssl.errors import ConfigError, nearest, refuse_unknown

OPTIMIZERS: dict[str, type[optim.Optimizer]] = {
    "adamw": optim.AdamW,
    "adam": optim.Adam,
    "sgd": optim.SGD,
    "adadelta": optim.Adadelta,
    "adamax": optim.Adamax,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
    "rprop": optim.Rprop,
    "radam": optim.RAdam,
    "nadam": optim.NAdam,
}
TARGETS = {f"torch.optim.{cls.__name__}": cls for cls in OPTIMIZERS.values()}
_ONLY_IN_NEMO = (
    *("novograd", "adafactor", "adan", "lamb"),
    *("fused_adam", "distributed_fused_adam", "megatron_fused_adam"),
)


def parameter_groups(
    model: nn.Module, config: Mapping[str, Any] | None = None, key: str = "model.optim_param_groups"
) -> list[dict[str, Any]]:
    """Return groups of all parameters, frozen ones included as in NeMo; modules in `config` have their own groups."""
    children = dict(model.named_children())
    groups: list[dict[str, Any]] = []
    for name, options in (config or {}).items():
        if name not in children:
            raise ConfigError(f"{key}.{name}: the model has no such part{nearest(name, children)}")
        groups.append({"params": list(children[name].parameters()), **(options or {})})
    named = {id(parameter) for group in groups for parameter in group["params"]}
    others = [parameter for parameter in model.parameters() if id(parameter) not in named]
    return [{"params": others}, *groups] if others else groups


def build_optimizer(
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]], config: Mapping[str, Any], key: str = "model.optim"
) -> optim.Optimizer:
    """Return the optimizer that the `optim` node names, for parameters or groups of them; `sched` is ignored."""
    cls = _optimizer_class(config, key)
    known = list(optimizer_options(cls))
    options = read_options(_without(config, keys_of(OptimizerSettings)), known, cls.__name__, key)
    if options.get("lr") is None:
        raise ConfigError(f"{key}.lr: missing; give the learning rate")
    if isinstance(options["lr"], str):
        raise ConfigError(f"{key}.lr: {options['lr']!r} is not a number")
    try:
        return cls([_typed_group(entry, known, cls, key) for entry in parameters], **options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key}: {cls.__name__}: {error}") from error


def optimizer_options(cls: type[optim.Optimizer]) -> dict[str, inspect.Parameter]:
    """Return the options of an optimizer that a configuration can set."""
    parameters = inspect.signature(cls).parameters.items()
    return {name: parameter for name, parameter in parameters if name != "params"}


def with_fused_kernel(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with `fused: true` if the optimizer has such a kernel: 4 times faster on a CPU."""
    has_one = "fused" in inspect.signature(_optimizer_class(config, "model.optim")).parameters
    chosen = any(config.get(name) is not None for name in ("fused", "foreach", "differentiable"))
    return {**config, "fused": True} if has_one and not chosen else dict(config)


def _optimizer_class(config: Mapping[str, Any], key: str) -> type[optim.Optimizer]:
    target = config.get("_target_")
    if target is not None:
        if target not in TARGETS:
            raise ConfigError(f"{key}._target_: {target!r} is not a known optimizer{nearest(str(target), TARGETS)}")
        return TARGETS[target]
    name = config.get("name") or OptimizerSettings.name
    if name in _ONLY_IN_NEMO:
        raise ConfigError(f"{key}.name: {name!r} exists in NeMo only; use 'adamw'")
    if name not in OPTIMIZERS:
        raise ConfigError(f"{key}.name: {name!r} is not one of {', '.join(OPTIMIZERS)}{nearest(str(name), OPTIMIZERS)}")
    return OPTIMIZERS[name]


def _typed_group(entry: Any, known: list[str], cls: type[optim.Optimizer], key: str) -> Any:
    """Return a parameter unchanged, a group with checked options: torch does not check them."""
    if not isinstance(entry, Mapping):
        return entry
    options = read_options(_without(entry, ("params",)), known, cls.__name__, f"{key}_param_groups")
    return {"params": entry["params"], **options}


def _without(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def read_options(config: Mapping[str, Any], known: Iterable[str], owner: str, key: str) -> dict[str, Any]:
    """Return the options under `key`, typed as Python needs them; refuse one that the class `owner` does not take."""
    refuse_unknown(config, known, key, owner)
    return {name: _typed(value) for name, value in config.items()}


def _typed(value: Any) -> Any:
    """Return the number that a string such as `1e-3` means (a string to YAML 1.1), and lists as tuples."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    if isinstance(value, Sequence):
        return tuple(_typed(item) for item in value)
    return value


def clip_or_drop(parameters: Sequence[nn.Parameter], max_norm: float | None, drop: bool = True) -> tuple[Tensor, bool]:
    """Clip the gradients to `max_norm` as `clip_grad_norm_` does; set them to None if their norm is not finite.

    Return the norm before clipping and whether it is finite. An optimizer skips parameters without a gradient, moments
    and weight decay included. Without `drop`, the caller skips the step.
    """
    norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if hasattr(norm, "full_tensor"):  # sharded weights
        norm = norm.full_tensor()
    finite = bool(norm.isfinite())
    if not finite and drop:
        for parameter in parameters:
            parameter.grad = None
    elif max_norm is not None:
        clip_grads_with_norm_(parameters, max_norm, norm)
    return norm, finite
