"""The `exp_manager` node: every key of NeMo's, with its default; what is not supported is refused if switched on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from nest_ssl.config.schema.kinds import LIST, MAPPING
from nest_ssl.config.schema.node import Node, RefusedKey, setting

_OTHER_LOGGERS = RefusedKey("use TensorBoard, create_wandb_logger or create_mlflow_logger")
_RESILIENCY = "it needs NVIDIA's resiliency package"


@dataclass(frozen=True)
class CheckpointSettings(Node):
    """When checkpoints are written and which are kept: Lightning's ModelCheckpoint, and `.nemo` archives beside it."""

    IDLE: ClassVar[tuple[str, ...]] = ("model_parallel_size", "save_last_n_optim_states")
    REFUSED: ClassVar[Mapping[str, RefusedKey]] = {"filepath": RefusedKey("use dirpath and filename")}

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
    on_write_error: Literal["continue", "stop"] = "continue"  # a full disk; not in NeMo, which stops


@dataclass(frozen=True)
class EarlyStoppingSettings(Node):
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
class ExperimentSettings(Node):
    """The `exp_manager` node: the folder of a run, its loggers, and whether it continues an earlier run."""

    # arguments of what is not built, and keys of NeMo's own start-up
    IDLE: ClassVar[tuple[str, ...]] = (
        *("dllogger_logger_kwargs", "clearml_logger_kwargs", "neptune_logger_kwargs", "ema"),
        *("ipl_epoch_stopper_callback_params", "straggler_detection_params", "fault_tolerance", "step_timing_kwargs"),
        *("seconds_to_sleep", "log_tflops_per_sec_per_gpu", "disable_validation_on_resume", "resume_past_end"),
    )
    REFUSED: ClassVar[Mapping[str, RefusedKey]] = {
        "create_dllogger_logger": _OTHER_LOGGERS,
        "create_clearml_logger": _OTHER_LOGGERS,
        "create_neptune_logger": _OTHER_LOGGERS,
        "create_ipl_epoch_stopper_callback": RefusedKey("it belongs to pseudo-labelling, not to pre-training"),
        "create_straggler_detection_callback": RefusedKey(_RESILIENCY),
        "create_fault_tolerance_callback": RefusedKey(f"{_RESILIENCY}; resume_if_exists continues a stopped run"),
        "log_delta_step_timing": RefusedKey("use log_step_timing"),
        "ema.enable": RefusedKey("it is not part of NEST pre-training"),
    }

    explicit_log_dir: str | None = None
    exp_dir: str | None = None
    name: str | None = None
    version: str | None = None
    use_datetime_version: bool = True
    resume_if_exists: bool = False
    resume_ignore_no_checkpoint: bool = False
    resume_from_checkpoint: str | None = None
    create_tensorboard_logger: bool = True
    summary_writer_kwargs: dict[str, Any] = setting(factory=dict, kind=MAPPING)
    create_wandb_logger: bool = False
    wandb_logger_kwargs: dict[str, Any] = setting(factory=dict, kind=MAPPING)
    create_mlflow_logger: bool = False
    mlflow_logger_kwargs: dict[str, Any] = setting(factory=dict, kind=MAPPING)
    log_samples: bool = True  # an utterance or two of each validation, as arrays and pictures; not in NeMo
    create_checkpoint_callback: bool = True
    checkpoint_callback_params: CheckpointSettings = setting(factory=CheckpointSettings)
    create_early_stopping_callback: bool = False
    early_stopping_callback_params: EarlyStoppingSettings = setting(factory=EarlyStoppingSettings)
    create_preemption_callback: bool = True
    files_to_copy: list[str] = setting(factory=list, kind=LIST)
    log_step_timing: bool = True
    max_time_per_run: str | None = None
    max_nonfinite_steps: int = 10  # in succession, before the run stops; not in NeMo
