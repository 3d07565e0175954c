"""The `exp_manager` node: every key of NeMo's, with its default; what is not built is refused when switched on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

from nest_ssl.config.values import check_types
from nest_ssl.errors import ConfigError

_OTHER_LOGGERS = "use TensorBoard, create_wandb_logger or create_mlflow_logger"
# switch -> what does the job here instead
NOT_BUILT = {
    "create_dllogger_logger": _OTHER_LOGGERS,
    "create_clearml_logger": _OTHER_LOGGERS,
    "create_neptune_logger": _OTHER_LOGGERS,
    "create_ipl_epoch_stopper_callback": "it belongs to pseudo-labelling, not to pre-training",
    "create_straggler_detection_callback": "it needs NVIDIA's resiliency package",
    "create_fault_tolerance_callback": "it needs NVIDIA's resiliency package; resume_if_exists continues a stopped run",
    "log_delta_step_timing": "use log_step_timing",
    "ema.enable": "it is not part of NEST pre-training",
    "checkpoint_callback_params.filepath": "use dirpath and filename",
}
# NeMo's keys that say nothing here: arguments of what is not built, and what concerns NeMo's own start-up
_IGNORED = (
    *("dllogger_logger_kwargs", "clearml_logger_kwargs", "neptune_logger_kwargs", "ema"),
    *("ipl_epoch_stopper_callback_params", "straggler_detection_params", "fault_tolerance", "step_timing_kwargs"),
    *("seconds_to_sleep", "log_tflops_per_sec_per_gpu", "disable_validation_on_resume", "resume_past_end"),
)
_IGNORED_CHECKPOINT = ("model_parallel_size", "save_last_n_optim_states")


@dataclass(frozen=True)
class CheckpointSettings:
    """When checkpoints are written and which are kept: Lightning's ModelCheckpoint, and `.nemo` archives beside it."""

    dirpath: str | None = None
    filename: str | None = None
    monitor: str = "val_loss"
    verbose: bool = True
    save_last: bool = True
    save_top_k: int = 3
    save_weights_only: bool = False
    mode: Literal["min", "max"] = "min"
    auto_insert_metric_name: bool = True
    every_n_epochs: int | None = 1
    every_n_train_steps: int | None = None
    train_time_interval: float | None = None  # seconds
    save_on_train_epoch_end: bool | None = False
    prefix: str | None = None
    postfix: str = ".nemo"
    save_best_model: bool = False
    always_save_nemo: bool = False
    save_nemo_on_train_end: bool = True
    async_save: bool = False  # write a copy in the background
    on_write_error: Literal["continue", "stop"] = "continue"  # a full disk; ours alone, NeMo stops


@dataclass(frozen=True)
class EarlyStoppingSettings:
    """Arguments of Lightning's EarlyStopping, with NeMo's defaults."""

    monitor: str = "val_loss"
    mode: Literal["min", "max"] = "min"
    min_delta: float = 0.001
    patience: int = 10
    verbose: bool = True
    strict: bool = True
    check_finite: bool = True
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None
    check_on_train_epoch_end: bool | None = None
    log_rank_zero_only: bool = False


@dataclass(frozen=True)
class ExperimentSettings:
    """Where a run writes, what it logs, whether it continues an earlier one."""

    explicit_log_dir: str | None = None
    exp_dir: str | None = None
    name: str | None = None
    version: str | None = None
    use_datetime_version: bool = True
    resume_if_exists: bool = False
    resume_ignore_no_checkpoint: bool = False
    resume_from_checkpoint: str | None = None
    create_tensorboard_logger: bool = True
    summary_writer_kwargs: dict[str, Any] = field(default_factory=dict)
    create_wandb_logger: bool = False
    wandb_logger_kwargs: dict[str, Any] = field(default_factory=dict)
    create_mlflow_logger: bool = False
    mlflow_logger_kwargs: dict[str, Any] = field(default_factory=dict)
    log_samples: bool = True  # an utterance or two of each validation, as arrays and pictures (ours alone)
    create_checkpoint_callback: bool = True
    checkpoint_callback_params: CheckpointSettings = field(default_factory=CheckpointSettings)
    create_early_stopping_callback: bool = False
    early_stopping_callback_params: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)
    create_preemption_callback: bool = True
    files_to_copy: list[str] = field(default_factory=list)
    log_step_timing: bool = True
    max_time_per_run: str | None = None
    max_nonfinite_steps: int = 10  # in a row, each of which is left out; then the run stops (ours alone)


CHECKPOINT_KEYS = (*(f.name for f in fields(CheckpointSettings)), "filepath", *_IGNORED_CHECKPOINT)
EARLY_STOPPING_KEYS = tuple(f.name for f in fields(EarlyStoppingSettings))
EXPERIMENT_KEYS = (*(f.name for f in fields(ExperimentSettings)), *(k for k in NOT_BUILT if "." not in k), *_IGNORED)


def read_settings(config: Mapping[str, Any], key: str = "exp_manager") -> ExperimentSettings:
    """The settings of a plain `exp_manager` node whose keys are known (see `keys.py`)."""
    for switch, instead in NOT_BUILT.items():
        if _lookup(config, switch):
            raise ConfigError(f"{key}.{switch}: not available here; {instead}")
    nodes = {"checkpoint_callback_params": CheckpointSettings, "early_stopping_callback_params": EarlyStoppingSettings}
    parts = {node: _read(config.get(node) or {}, cls, f"{key}.{node}") for node, cls in nodes.items()}
    return _read({**config, **parts}, ExperimentSettings, key)


def _read(config: Mapping[str, Any], settings: type, key: str) -> Any:
    """A settings object of what the configuration sets; null is the default where it is no value of the field."""
    hints = get_type_hints(settings)
    chosen = {
        name: value
        for name, value in config.items()
        if name in hints and (value is not None or NoneType in get_args(hints[name]))
    }
    chosen = {name: _as_text(value) if str in get_args(hints[name]) else value for name, value in chosen.items()}
    check_types(chosen, hints, key)
    return settings(**chosen)


def _as_text(value: Any) -> Any:
    """A name or version that looks like a number is text all the same."""
    return str(value) if type(value) in (int, float) else value


def _lookup(config: Mapping[str, Any], dotted: str) -> Any:
    value: Any = config
    for name in dotted.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
