"""Which numbers of several runs may be compared: losses and accuracies only of one task, and on the same data.

A loss over 256 codes starts at log 256, one over 8192 at log 8192; other masks, features or noise make the task easier
or harder. The smaller number is then not the better model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nest_ssl.apps.report.preset import changes
from nest_ssl.apps.report.run import Run

Scope = Literal["task", "training", "validation"]
_DATA: dict[Scope, str | None] = {"task": None, "training": "train_ds", "validation": "validation_ds"}
# Of `model`, all that may differ: how a model learns, and how its data is loaded. What is not listed changes the task.
_LEARNING = {
    *("encoder", "decoder", "optim", "optim_param_groups", "numerics", "compile", "batch_norm_over_padding"),
    *("spec_augment", "train_ds", "validation_ds", "test_ds", "target", "nemo_version"),
}
_TASK_WITHIN = ("model.encoder.subsampling_factor", "model.encoder.feat_in")  # of the encoder: what a target covers
_LOADING = {
    *("batch_size", "batch_duration", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor"),
    *("drop_last", "shuffle", "shuffle_n", "bucketing_strategy", "bucketing_batch_size", "use_bucketing"),
    *("num_buckets", "bucket_buffer_size", "shuffle_buffer_size", "bucket_duration_bins"),
}


@dataclass(frozen=True)
class Obstacle:
    """Why numbers of some runs are not compared: keys in which they differ, or runs without a configuration."""

    keys: tuple[str, ...]
    unknown: tuple[str, ...]  # names of runs


def obstacle(runs: Sequence[Run], scope: Scope) -> Obstacle | None:
    """What stands against comparing losses and accuracies of all these runs; None if nothing does."""
    unknown = tuple(run.name for run in runs if run.setting("model.num_classes") is None)
    known = [run for run in runs if run.name not in unknown]
    differing = (change.key for run in known[1:] for change in changes(known[0].config, run.config))
    keys = tuple(dict.fromkeys(key for key in differing if _matters(key, scope)))
    return Obstacle(keys, unknown) if len(runs) > 1 and (keys or unknown) else None


def groups_of_one_task(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs in their order, those of the same task together: their losses fit into one chart."""
    groups: list[list[Run]] = []
    for run in runs:
        fitting = next((group for group in groups if obstacle([group[0], run], "task") is None), None)
        if fitting is None:
            groups.append([run])
        else:
            fitting.append(run)
    return groups


def _matters(key: str, scope: Scope) -> bool:
    node, part, name = [*key.split("."), "", ""][:3]
    if node != "model":
        return False
    if part == _DATA[scope]:
        return name not in _LOADING
    return part not in _LEARNING or key in _TASK_WITHIN
