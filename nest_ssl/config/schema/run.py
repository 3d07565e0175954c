"""The top level of a configuration, and what its `model` node has beside the nodes of parts and data sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from nest_ssl.config.schema.kinds import LIST, MAPPING, NAME_PARTS, TEXT, either, whole
from nest_ssl.config.schema.node import Node, RefusedKey, setting

DATA_SETS = ("train_ds", "validation_ds", "test_ds")  # the nodes of data below `model`
Numerics = Literal["exact", "fast"]  # NeMo's operations in NeMo's order, or free to reorder them


@dataclass(frozen=True)
class RunSettings(Node):
    """The top level, beside the nodes `model`, `trainer` and `exp_manager`."""

    IDLE: ClassVar[tuple[str, ...]] = ("init_strict",)
    REFUSED: ClassVar[Mapping[str, RefusedKey]] = {
        "init_from_pretrained_model": RefusedKey(
            "models are not downloaded by name; get the .nemo file and give init_from_nemo_model=<path>", off=(None,)
        )
    }

    name: str | None = None
    seed: int | None = None
    init_from_nemo_model: Any = setting(None, kind=either([TEXT, MAPPING]))
    init_from_ptl_ckpt: Any = setting(None, kind=either([TEXT, MAPPING]))

    # of recordings: train_with_saver.py alone reads them
    output_dir: str | None = None
    save_steps: Any = setting((0,), kind=either([whole(0), TEXT, LIST]))
    save_layers: Any = setting(("*",), kind=either([TEXT, LIST]))
    save_max_gb: float = setting(8.0, above=0)


@dataclass(frozen=True)
class WeightSource(Node):
    """A file and the tensors to load from it: names that contain any of `include` and none of `exclude`."""

    path: str = setting()
    include: list[str] = setting(("",), kind=NAME_PARTS)
    exclude: list[str] = setting((), kind=NAME_PARTS)


@dataclass(frozen=True)
class ModelSettings(Node):
    """The values of the `model` node."""

    IDLE: ClassVar[tuple[str, ...]] = ("target", "nemo_version")  # written by NeMo into the archives it saves

    sample_rate: int | None = setting(None, at_least=1)
    num_classes: int | None = setting(None, at_least=1)
    num_books: int | None = setting(None, at_least=1)
    code_dim: int | None = setting(None, at_least=1)
    squeeze_single: bool | None = None
    mask_position: Literal["pre_conv", "post_conv"] = "pre_conv"
    numerics: Numerics = "exact"
    batch_norm_over_padding: bool = True
    compile: bool = False
    optim: Mapping[str, Any] | None = setting(None, kind=MAPPING)
    optim_param_groups: Mapping[str, Any] | None = setting(None, kind=MAPPING)


@dataclass(frozen=True)
class OptimizerSettings(Node):
    """The keys of `model.optim` that every optimizer has; the others are the arguments of the optimizer."""

    name: str = "adam"  # NeMo's default
    _target_: str | None = None
    sched: Mapping[str, Any] | None = setting(None, kind=MAPPING)


@dataclass(frozen=True)
class ScheduleSettings(Node):
    """The keys of `model.optim.sched` that every schedule has; the others are the arguments of the schedule."""

    IDLE: ClassVar[tuple[str, ...]] = ("reduce_on_plateau",)

    name: str = setting()
    monitor: str = "val_loss"
    max_steps: int | None = None  # where the trainer does not say how long the run is
