"""The output of a run: its own messages at the start and the end, and errors of other libraries."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from nest_ssl.printable import say
from nest_ssl.shell import as_typed
from nest_ssl.training.checkpointing.checkpoints import RunCheckpoint
from nest_ssl.training.checkpointing.run_record import RunRecord
from nest_ssl.training.experiment import Experiment
from nest_ssl.training.optim.schedules import WarmupPolicy
from nest_ssl.training.run_folder import shown_path

_log = logging.getLogger(__name__)
_ON_REQUEST = ("lightning.pytorch.callbacks.model_summary", "lightning.pytorch.profilers.profiler")
_NOISY_LOGGERS = ("lightning.pytorch", "lightning.fabric", "torch", "fsspec")


class _Lines(logging.Handler):
    """Prints plain lines to the present standard output (a progress bar replaces it, to print above itself)."""

    def emit(self, record: logging.LogRecord) -> None:
        label = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        say(f"{label}{record.getMessage()}", flush=True)


@contextlib.contextmanager
def messages() -> Iterator[None]:
    """Within the block, show this package's messages on rank 0, and of other libraries only errors."""
    ours = logging.getLogger("nest_ssl")
    handler, level, propagate = _Lines(), ours.level, ours.propagate
    ours.addHandler(handler)
    ours.setLevel(logging.INFO if getattr(rank_zero_only, "rank", 0) == 0 else logging.ERROR)
    ours.propagate = False
    levels = {**dict.fromkeys(_NOISY_LOGGERS, logging.ERROR), **dict.fromkeys(_ON_REQUEST, logging.INFO)}
    former_levels = {name: logging.getLogger(name).level for name in levels}
    _set_levels(levels)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            warnings.filterwarnings("ignore", module=r"torch\..*")
            yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
        ours.propagate = propagate
        _set_levels(former_levels)


def _set_levels(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def announce(trainer: Trainer, model: LightningModule, resume_from: Path | None) -> None:
    """Log the size of the model and the device."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    _log.info("model: %s parameters, %s of them trainable", _short(parameters), _short(trainable))
    device = trainer.strategy.root_device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    _log.info("device: %s, processes: %d, precision: %s", where, trainer.world_size, trainer.precision)
    if resume_from is not None:
        _log.info("resuming from %s", shown_path(resume_from))


def conclude(trainer: Trainer, record: RunRecord, command: Sequence[str], resume_from: Path | None) -> None:
    """Log where the results are, and what to type next."""
    experiment = record.experiment
    steps = 0 if record.first_step is None else trainer.global_step - record.first_step
    if steps == 0 and resume_from is not None:
        _log.info(
            "nothing left to train: %s is at step %d; a larger trainer.max_steps trains on, name=NEW starts a new run",
            *(resume_from.name, trainer.global_step),
        )
    else:
        _log.info("trained %d steps in %.1f min", steps, (time.monotonic() - record.started_at) / 60)
    checkpoints = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, RunCheckpoint)]
    for checkpoint in checkpoints:
        if checkpoint.best_model_path:
            _log.info("best checkpoint: %s", shown_path(checkpoint.best_model_path))
        if checkpoint.last_model_path:
            _log.info("last checkpoint: %s", shown_path(checkpoint.last_model_path))
        if checkpoint.nemo_path.exists():
            _log.info("NeMo archive:    %s", shown_path(checkpoint.nemo_path))
    if experiment.settings.create_tensorboard_logger:
        _log.info("to see a report: %s", as_typed(["nest-ssl report", shown_path(experiment.folder)]))
        _log.info("to see curves:   %s", as_typed(["tensorboard", "--logdir", shown_path(experiment.folder)]))
    if checkpoints and checkpoints[0].last_model_path and not _schedule_is_over(trainer):
        _log.info("to train on:     %s", how_to_continue(trainer, experiment, command, checkpoints[0].last_model_path))


def how_to_continue(trainer: Trainer, experiment: Experiment, command: Sequence[str], last: str) -> str:
    """Return the same command, with a later end if the end was reached, and with the checkpoint if needed."""
    words = [word for word in command if not word.lstrip("+").startswith("exp_manager.resume_from_checkpoint=")]
    limits = {"trainer.max_steps": trainer.max_steps, "trainer.max_epochs": trainer.max_epochs or -1}
    done = {"trainer.max_steps": trainer.global_step, "trainer.max_epochs": trainer.current_epoch}
    for key, limit in limits.items():
        if 0 < limit <= done[key]:
            words = [word for word in words if not word.lstrip("+").startswith(f"{key}=")] + [f"{key}={2 * limit}"]
    if not experiment.settings.resume_if_exists:
        words.append(f"exp_manager.resume_from_checkpoint={shown_path(last)}")
    return as_typed(words)


def _schedule_is_over(trainer: Trainer) -> bool:
    """Return whether a longer run would train at `min_lr`, which `Continuation` refuses."""
    schedules = [entry.scheduler for entry in trainer.lr_scheduler_configs]
    ends = [one.max_steps for one in schedules if isinstance(one, WarmupPolicy) and one.ends_at_max_steps]
    return any(end is not None and end <= trainer.global_step for end in ends)


def _short(count: int) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return str(count)
