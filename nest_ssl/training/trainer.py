"""Lightning's trainer: built from the `trainer` node, and run with errors that say what to do."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from omegaconf import DictConfig, OmegaConf

from nest_ssl.config.machine import FSDP, GLOO_DDP
from nest_ssl.config.schema import ExperimentSettings
from nest_ssl.errors import ConfigError, NestError
from nest_ssl.training.callbacks.nonfinite import NonFiniteSteps
from nest_ssl.training.callbacks.stopping import Stopped
from nest_ssl.training.checkpointing.checkpoint_files import CheckpointFiles
from nest_ssl.training.experiment import Experiment
from nest_ssl.training.processes import dead_workers_reported_once, lost_process

_log = logging.getLogger(__name__)


def build_trainer(
    cfg: DictConfig, callbacks: Sequence[Callback], experiment: Experiment | None, profiler: Profiler
) -> pl.Trainer:
    """Return the trainer of a configuration; `profiler` is used if the configuration names none."""
    arguments: dict[str, Any] = OmegaConf.to_container(cfg.get("trainer") or OmegaConf.create())  # type: ignore
    if GLOO_DDP not in StrategyRegistry:
        StrategyRegistry.register(GLOO_DDP, DDPStrategy, "DDP over gloo", process_group_backend="gloo")
    strategy = arguments.get("strategy") or "auto"
    if strategy == FSDP:
        from nest_ssl.training.fsdp import ShardedStrategy

        strategy = ShardedStrategy()
    arguments["strategy"] = strategy
    arguments.setdefault("enable_model_summary", False)
    arguments["enable_progress_bar"] = False  # Lightning's own, which restarts with every epoch
    if arguments.get("profiler") is None:
        arguments["profiler"] = profiler
    try:
        if experiment is None:
            files = CheckpointFiles()
            writers: list[Callback] = [NonFiniteSteps(None, ExperimentSettings().max_nonfinite_steps)]
        else:
            files, writers = experiment.files(), experiment.callbacks(cfg)
            arguments["logger"] = False
            arguments["enable_checkpointing"] = experiment.settings.create_checkpoint_callback
        return pl.Trainer(**arguments, callbacks=[*callbacks, *writers], plugins=[files])
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise ConfigError(f"trainer: {' '.join(str(error).split())}") from error


def fit(trainer: pl.Trainer, model: pl.LightningModule, resume_from: Path | None) -> BaseException | None:
    """Train to the end; if a signal stopped the run, return the exception that says so."""
    try:
        with dead_workers_reported_once():
            trainer.fit(model, ckpt_path=resume_from)
    except Stopped as stopped:
        _log.info("stopped by %s at step %d", stopped.name, trainer.global_step)
        return stopped
    except SIGTERMException:  # before the first step
        return Stopped(signal.SIGTERM)
    except SystemExit:  # Lightning's answer to Ctrl-C before the first step
        _log.info("interrupted at step %d", trainer.global_step)
        return KeyboardInterrupt()
    except torch.OutOfMemoryError as error:
        raise NestError(
            f"the GPU's memory is full at step {trainer.global_step}; lower model.train_ds.batch_size and raise "
            "trainer.accumulate_grad_batches as much for the same updates, or lower model.train_ds.max_duration"
        ) from error
    except RuntimeError as error:
        lost = lost_process(trainer, error)
        if lost is None:
            raise
        raise NestError(lost) from error
    return None
