"""One training run, from its configuration to its last checkpoint."""

from __future__ import annotations

import logging
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from omegaconf import DictConfig, OmegaConf

from nest_ssl.config.command_line import parse_command_line
from nest_ssl.config.compose import load_config
from nest_ssl.config.machine import FSDP, GLOO_DDP, Adjustment, Machine, fit_to_machine
from nest_ssl.config.settings import ExperimentSettings
from nest_ssl.errors import ConfigError, NestError
from nest_ssl.exit_codes import FAILED, INTERRUPTED
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.printable import say, say_lines
from nest_ssl.training.advice import Setup, advice
from nest_ssl.training.callbacks.bottleneck import BottleneckNotice
from nest_ssl.training.callbacks.monitor import TrainingMonitor
from nest_ssl.training.callbacks.nonfinite import NonFiniteSteps
from nest_ssl.training.callbacks.progress import TrainingProgress
from nest_ssl.training.callbacks.ranks import Ranks, leave_with_the_first_process, lost_process
from nest_ssl.training.callbacks.stopping import StopOnSignal, Stopped
from nest_ssl.training.callbacks.throughput import Throughput
from nest_ssl.training.callbacks.timing import ValidationSchedule
from nest_ssl.training.checkpointing.checkpoint_files import CheckpointFiles
from nest_ssl.training.checkpointing.continuation import Continuation
from nest_ssl.training.checks.preflight import DataPreflight, check_configuration
from nest_ssl.training.console import announce, conclude, messages
from nest_ssl.training.dead_loader import dead_loader, told_once
from nest_ssl.training.experiment import Experiment, plan_experiment
from nest_ssl.training.fsdp import ShardedStrategy
from nest_ssl.training.run_lock import hold_run_folders

_log = logging.getLogger(__name__)


class TrainFunction(Protocol):
    """What a complete configuration is handed to."""

    def __call__(self, cfg: DictConfig, *, command: Sequence[str]) -> None: ...


def main(
    argv: Sequence[str] | None = None,
    config_dir: Path = Path("config"),
    program: str = "train.py",
    run: TrainFunction | None = None,
) -> int:
    """Train as the command line says; the exit code. What is wrong with the input is one line on standard error."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        command = parse_command_line(argv, config_dir, program)
        cfg = load_config(command)
        if command.show:
            say_lines(OmegaConf.to_yaml(cfg))
            return 0
        with messages():
            (run or train)(cfg, command=[program, *argv])
    except NestError as error:
        return _fail(_last_line(error))
    except MisconfigurationException as error:
        return _fail(f"trainer: {' '.join(str(error).split())}")
    except Stopped as stopped:
        return stopped.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # nobody foresaw it: a bug, which keeps its traceback
        traceback.print_exc()
        return FAILED
    return 0


def train(cfg: DictConfig, *, callbacks: Sequence[Callback] = (), command: Sequence[str] = ("train.py",)) -> None:
    """Train the model of a complete, resolved configuration, in NeMo's order: seed, trainer, model, weights, fit."""
    machine = Machine.here()
    adjustments = fit_to_machine(cfg, machine)
    check_configuration(cfg, command)
    experiment = _experiment(cfg, adjustments)
    continuation = None if experiment is None else Continuation(cfg, experiment)
    _seed(cfg.get("seed"))
    clock = _Clock()
    throughput = Throughput(_sample_rate(cfg))
    every = [clock, *callbacks] if continuation is None else [clock, *callbacks, continuation]
    trainer = _trainer(cfg, machine, experiment, throughput, every)
    leave_with_the_first_process(trainer)
    with hold_run_folders(experiment if trainer.is_global_zero else None):
        model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer)
        resume_from = experiment.resume_from if experiment else None
        if continuation is not None:
            continuation.check_weights(model)
        if resume_from is None:  # a checkpoint brings its own weights
            model.maybe_init_from_pretrained_checkpoint(cfg)
        announce(trainer, model, resume_from)
        stopped_by = _fit(trainer, model, resume_from)
        for line in advice(throughput.measured(), Setup.of(cfg, trainer, machine)):
            _log.info(line)
        if experiment is not None:
            conclude(trainer, experiment, command, clock.first_step(trainer), clock.minutes())
    if stopped_by is not None:
        raise stopped_by


def _fit(trainer: pl.Trainer, model: pl.LightningModule, resume_from: Path | None) -> BaseException | None:
    """Train to the end, or until the outside world says stop, which is returned."""
    try:
        with told_once():
            trainer.fit(model, ckpt_path=resume_from)
    except Stopped as stopped:
        _log.info("stopped by %s at step %d", stopped.name, trainer.global_step)
        return stopped
    except SIGTERMException:  # before the first step
        return Stopped(signal.SIGTERM)
    except SystemExit:  # how Lightning ends a run on Ctrl-C, then
        _log.info("interrupted at step %d", trainer.global_step)
        return KeyboardInterrupt()
    except torch.OutOfMemoryError as error:
        raise NestError(
            f"the GPU's memory is full at step {trainer.global_step}; lower model.train_ds.batch_size and raise "
            "trainer.accumulate_grad_batches as much for the same updates, or lower model.train_ds.max_duration"
        ) from error
    except RuntimeError as error:
        lost = dead_loader(error, trainer.global_step) or lost_process(trainer, error)
        if lost is None:
            raise
        raise NestError(lost) from error
    return None


class _Clock(Callback):
    """Remembers when and at which step training began."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._started_at = time.monotonic()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step, self._started_at = trainer.global_step, time.monotonic()

    def first_step(self, trainer: pl.Trainer) -> int:
        return trainer.global_step if self._step is None else self._step

    def minutes(self) -> float:
        return (time.monotonic() - self._started_at) / 60


def _experiment(cfg: DictConfig, adjustments: Sequence[Adjustment]) -> Experiment | None:
    """The run's folder; none without an `exp_manager` node or in a trial run, as in NeMo."""
    if cfg.get("exp_manager") is None or cfg.get("trainer", {}).get("fast_dev_run"):
        return None
    node: Any = OmegaConf.to_container(cfg.exp_manager)
    return plan_experiment(node, cfg.get("trainer") or {}, adjustments)


def _seed(seed: Any) -> None:
    if seed is None:
        return
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ConfigError(f"seed: {seed!r} is not a whole number")
    pl.seed_everything(seed, verbose=False)


def _sample_rate(cfg: DictConfig) -> int:
    return OmegaConf.select(cfg, "model.train_ds.sample_rate") or OmegaConf.select(cfg, "model.sample_rate") or 16000


def _trainer(
    cfg: DictConfig,
    machine: Machine,
    experiment: Experiment | None,
    throughput: Throughput,
    callbacks: Sequence[Callback],
) -> pl.Trainer:
    arguments: dict[str, Any] = OmegaConf.to_container(cfg.get("trainer") or OmegaConf.create())  # type: ignore
    strategy = arguments.get("strategy") or "auto"
    arguments["strategy"] = ShardedStrategy() if strategy == FSDP else strategy
    arguments.setdefault("enable_model_summary", False)
    every: list[Callback] = [
        ValidationSchedule(),
        DataPreflight(cfg),
        StopOnSignal(),
        Ranks(),
        *callbacks,
        TrainingMonitor(),
    ]
    if arguments.get("profiler") is None:  # one that was asked for measures all of this itself
        every.extend((throughput, BottleneckNotice(throughput, cfg, machine)))
        arguments["profiler"] = throughput.fetch_clock
    if arguments.get("enable_progress_bar", True):
        every.append(TrainingProgress(throughput))
    arguments["enable_progress_bar"] = False  # Lightning's own, which starts again with every epoch
    if GLOO_DDP not in StrategyRegistry:
        StrategyRegistry.register(GLOO_DDP, DDPStrategy, "DDP over gloo", process_group_backend="gloo")
    files = experiment.files() if experiment else CheckpointFiles()
    try:
        if experiment is not None:
            every.extend(experiment.callbacks(cfg))
            arguments["logger"] = False
            arguments["enable_checkpointing"] = experiment.settings.create_checkpoint_callback
        else:
            every.append(NonFiniteSteps(None, ExperimentSettings().max_nonfinite_steps))
        return pl.Trainer(**arguments, callbacks=every, plugins=[files])
    except (MisconfigurationException, ValueError, TypeError) as error:
        raise ConfigError(f"trainer: {' '.join(str(error).split())}") from error


def _last_line(error: NestError) -> str:
    """The message itself, also of an error that a loader process wrapped into its traceback."""
    line = str(error).strip().splitlines()[-1]
    return line.removeprefix(f"{type(error).__module__}.{type(error).__name__}: ")


def _fail(message: str) -> int:
    say(f"error: {message}", error=True)
    return FAILED
