"""One training run, from its configuration to its last checkpoint."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf

from nest_ssl.config.command_line import parse_command_line
from nest_ssl.config.compose import load_config
from nest_ssl.config.machine import Adjustment, Machine, fit_to_machine
from nest_ssl.data.audio.sample_rate import sample_rate_of
from nest_ssl.errors import FAILED, INTERRUPTED, NestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.printable import say, say_lines
from nest_ssl.training.advice import BottleneckNotice, log_advice
from nest_ssl.training.callbacks.monitor import TrainingMonitor
from nest_ssl.training.callbacks.progress import TrainingProgress
from nest_ssl.training.callbacks.stopping import StopOnSignal, Stopped
from nest_ssl.training.callbacks.throughput import Throughput
from nest_ssl.training.checkpointing.run_record import RunRecord
from nest_ssl.training.checks import DataChecks, check_configuration, keeps_results
from nest_ssl.training.console import announce, conclude, messages
from nest_ssl.training.experiment import Experiment, plan_experiment
from nest_ssl.training.run_folder import hold_run_folders
from nest_ssl.training.run_length import ValidationSchedule
from nest_ssl.training.trainer import Ranks, build_trainer, fit, leave_with_the_first_process


def main(
    argv: Sequence[str] | None = None,
    config_dir: Path = Path("config"),
    program: str = "train.py",
    run: Callable[..., None] | None = None,
) -> int:
    """Train as the command line says and return the exit code; an error in the input is one line on standard error.

    `run` takes the place of `train`.
    """
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
    except Exception:  # a bug, which keeps its traceback
        traceback.print_exc()
        return FAILED
    return 0


def train(cfg: DictConfig, *, callbacks: Sequence[Callback] = (), command: Sequence[str] = ("train.py",)) -> None:
    """Train the model of a complete, resolved configuration.

    The order is NeMo's, because random numbers depend on it: seed, trainer, model, weights, training.
    """
    # Configuration: adjust it to this machine, refuse what cannot work
    machine = Machine.here()
    adjustments = fit_to_machine(cfg, machine)
    check_configuration(cfg, command)

    # Experiment: its folder, locked until the end, and the checkpoint to continue from; nothing is written yet
    experiment = _plan(cfg, adjustments)
    with hold_run_folders(experiment):
        resume_from = None if experiment is None else experiment.checkpoint_to_resume()
        record = None if experiment is None else _record(cfg, experiment, resume_from)

        # Trainer
        if cfg.get("seed") is not None:
            pl.seed_everything(cfg.seed, verbose=False)
        throughput = Throughput(sample_rate_of(OmegaConf.select(cfg, "model.train_ds"), OmegaConf.select(cfg, "model")))
        every: list[Callback] = [
            ValidationSchedule(),
            DataChecks(cfg),
            StopOnSignal(),
            Ranks(),
            *callbacks,
            *([] if record is None else [record]),
            TrainingMonitor(),
            *_speed_callbacks(cfg, throughput, machine),
        ]
        trainer = build_trainer(cfg, every, experiment, throughput.fetch_clock)
        leave_with_the_first_process(trainer)

        # Model and weights; its data module makes the loaders when training starts
        model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer)
        if resume_from is None:  # a checkpoint brings its own weights
            model.maybe_init_from_pretrained_checkpoint(cfg)

        # Training
        announce(trainer, model, resume_from)
        stopped_by = fit(trainer, model, resume_from)

        # Summary
        log_advice(throughput, cfg, trainer, machine)
        if record is not None:
            conclude(trainer, record, command, resume_from)
    if stopped_by is not None:
        raise stopped_by


def _plan(cfg: DictConfig, adjustments: Sequence[Adjustment]) -> Experiment | None:
    if not keeps_results(cfg):
        return None
    node: Any = OmegaConf.to_container(cfg.exp_manager)
    return plan_experiment(node, cfg.get("trainer") or {}, adjustments)


def _record(cfg: DictConfig, experiment: Experiment, resume_from: Path | None) -> RunRecord:
    """Return the record of the run; if it resumes, refuse changes of the configuration that cannot take effect."""
    if resume_from is None:
        return RunRecord(cfg, experiment)
    from nest_ssl.training.checkpointing.continuation import Continuation

    return Continuation(cfg, experiment, resume_from)


def _speed_callbacks(cfg: DictConfig, throughput: Throughput, machine: Machine) -> Iterator[Callback]:
    trainer = cfg.get("trainer") or {}
    if trainer.get("profiler") is None:  # a profiler that the user chose takes the place of `fetch_clock`
        yield throughput
        yield BottleneckNotice(throughput, cfg, machine)
    if trainer.get("enable_progress_bar", True):
        yield TrainingProgress(throughput)


def _last_line(error: NestError) -> str:
    """Return the message itself, also of an error that a worker wrapped into its traceback."""
    line = str(error).strip().splitlines()[-1]
    return line.removeprefix(f"{type(error).__module__}.{type(error).__name__}: ")


def _fail(message: str) -> int:
    say(f"error: {message}", error=True)
    return FAILED
