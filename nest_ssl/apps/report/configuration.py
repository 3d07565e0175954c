"""How the configurations of runs differ, which runs may be compared, and what a run adjusted to its machine.

Losses and accuracies are compared only between runs with the same task and the same data: a loss over 256 codes starts
at log 256, one over 8192 at log 8192, and other masks, features or noise make the task easier or harder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nest_ssl.apps.report.run import Run
from nest_ssl.config.machine import Adjustment

Scope = Literal["task", "training", "validation"]
_DATA: dict[Scope, str | None] = {"task": None, "training": "train_ds", "validation": "validation_ds"}
# Parts of `model` that may differ: how a model learns and how its data is loaded. All other parts change the task.
_LEARNING = {
    *("encoder", "decoder", "optim", "optim_param_groups", "numerics", "compile", "batch_norm_over_padding"),
    *("spec_augment", "train_ds", "validation_ds", "test_ds", "target", "nemo_version"),
}
_TASK_WITHIN = ("model.encoder.subsampling_factor", "model.encoder.feat_in")  # they change what a target covers
_LOADING = {
    *("batch_size", "batch_duration", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor"),
    *("drop_last", "shuffle", "shuffle_n", "bucketing_strategy", "bucketing_batch_size", "use_bucketing"),
    *("num_buckets", "bucket_buffer_size", "shuffle_buffer_size", "bucket_duration_bins"),
}

ABSENT = object()  # the value of a key that a configuration does not have
ADJUSTED = "adjusted"  # the field of environment.json
_FIELDS = {"key", "asked", "used", "reason"}


@dataclass(frozen=True)
class Difference:
    """One key and its value in each configuration, `ABSENT` where there is none."""

    key: str
    values: tuple[Any, ...]


def differences(configs: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Return the keys whose values differ, in their order; null and absent are the same."""
    values = [dict(_leaves(config)) for config in configs]
    keys = dict.fromkeys(key for of in values for key in of)
    differing = [key for key in keys if any(of.get(key) != values[0].get(key) for of in values)]
    return [Difference(key, tuple(of.get(key, ABSENT) for of in values)) for key in differing]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a configuration with their dotted keys."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def adjustments_of(run: Run) -> dict[str, Adjustment]:
    """Return the adjustments by key, without those that do not match the configuration."""
    records = run.environment.get(ADJUSTED)
    known = [of for of in records if isinstance(of, dict) and of.keys() >= _FIELDS] if isinstance(records, list) else []
    return {
        str(of["key"]): Adjustment(str(of["key"]), of["asked"], of["used"], str(of["reason"]))
        for of in known
        if of["used"] is not None and run.setting(str(of["key"])) == of["used"]
    }


@dataclass(frozen=True)
class Obstacle:
    """Why some runs cannot be compared: keys in which they differ, or runs without a configuration."""

    keys: tuple[str, ...]
    unknown: tuple[str, ...]  # names of runs


def obstacle(runs: Sequence[Run], scope: Scope) -> Obstacle | None:
    """Return why losses and accuracies of these runs cannot be compared; None if they can."""
    unknown = tuple(run.name for run in runs if run.setting("model.num_classes") is None)
    known = [run for run in runs if run.name not in unknown]
    keys = tuple(of.key for of in differences([run.config for run in known]) if _matters(of.key, scope))
    return Obstacle(keys, unknown) if len(runs) > 1 and (keys or unknown) else None


def groups_of_one_task(runs: Sequence[Run]) -> list[list[int]]:
    """Group the places of the runs by task: the losses of one group fit into one chart."""
    groups: list[list[int]] = []
    for place, run in enumerate(runs):
        fitting = next((group for group in groups if obstacle([runs[group[0]], run], "task") is None), None)
        if fitting is None:
            groups.append([place])
        else:
            fitting.append(place)
    return groups


def _matters(key: str, scope: Scope) -> bool:
    node, part, name = [*key.split("."), "", ""][:3]
    if node != "model":
        return False
    if part == _DATA[scope]:
        return name not in _LOADING
    return part not in _LEARNING or key in _TASK_WITHIN
