"""Lightning's trainer and its processes: built from the `trainer` node, and run with errors that say what to do."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, distributed

from nest_ssl.config.machine import FSDP, GLOO_DDP
from nest_ssl.config.schema import ExperimentSettings
from nest_ssl.errors import FAILED, ConfigError, NestError
from nest_ssl.training.callbacks.problems import NonFiniteSteps
from nest_ssl.training.callbacks.stopping import Stopped
from nest_ssl.training.checkpointing.checkpoint_files import CheckpointFiles
from nest_ssl.training.experiment import Experiment

_log = logging.getLogger(__name__)
_FIRST = "NEST_SSL_FIRST_PROCESS"  # environment variable with the process id of rank 0, for the ranks that it starts
_LOST_RANK = re.compile(r"closed by peer|reset by peer|broken pipe|timed out|remote process", re.IGNORECASE)
_DEAD_WORKER = re.compile(  # torch's words, from its handler of a child's end or from the next request for a batch
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?:is killed by signal: (?P<signal>[^.]+)|exited)"
)
_CONTINUE = "the same command continues from the last checkpoint"


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


class Ranks(Callback):
    """Checks before the first step that all ranks have the same frozen weights."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.world_size == 1:
            return
        frozen = [(name, value) for name, value in pl_module.named_parameters() if not value.requires_grad]
        refuse_different_weights(frozen)


def refuse_different_weights(weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise an error if ranks differ: DDP does not synchronise frozen weights, and the quantizer makes the targets."""
    own = {name: hashlib.sha256(value.detach().cpu().numpy().tobytes()).digest() for name, value in weights}
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, own)
    for rank, others in enumerate(every):
        for name, digest in every[0].items():
            if others.get(name) != digest:
                raise NestError(
                    f"{name}: process {rank} starts with other values than process 0; give all of them the same seed "
                    "(seed=1) and the same files to start from"
                )


def leave_with_the_first_process(trainer: pl.Trainer) -> None:
    """From now on, end this process when rank 0, which started it, is gone.

    Otherwise it would wait half an hour for a connection, and on a GPU for ever. Ranks that torchrun or SLURM started
    are ended by these.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if not isinstance(environment, LightningEnvironment):
        return
    if environment.local_rank() == 0:
        os.environ[_FIRST] = str(os.getpid())
    elif _FIRST in os.environ:  # rank 0 may be gone by now, so the present parent may be another process
        threading.Thread(target=_leave_after, args=(int(os.environ[_FIRST]),), daemon=True).start()


def _leave_after(parent: int) -> None:
    while os.getppid() == parent:  # never changes on Windows, where the lost connection ends this process
        time.sleep(1)
    print("error: the first process of this run has ended; leaving", file=sys.stderr, flush=True)
    os._exit(FAILED)


def lost_process(trainer: pl.Trainer, error: BaseException) -> str | None:
    """Return what happened and what to do if an error means that a worker or another rank died; else None."""
    return dead_worker(error, trainer.global_step) or _lost_rank(trainer, error)


def dead_worker(error: BaseException, step: int) -> str | None:
    """Return what happened and what to do if an error of the training loop means that a data worker died."""
    found = _DEAD_WORKER.search(str(error))
    if found is None:
        return None
    process = f"a loader process ({found['pids'].strip()}) died at step {step}"
    if found["signal"] == "Bus error":
        return (
            f"{process}: shared memory is full; give it more (docker run --shm-size=8g), or lower "
            f"model.train_ds.num_workers or prefetch_factor; {_CONTINUE}"
        )
    by = f" of the signal {found['signal']!r}" if found["signal"] else ""
    return (
        f"{process}{by}: most often the machine's memory is full; lower model.train_ds.num_workers, prefetch_factor or "
        f"batch_size; {_CONTINUE}"
    )


def _lost_rank(trainer: pl.Trainer, error: BaseException) -> str | None:
    if trainer.world_size == 1 or not _LOST_RANK.search(str(error)):
        return None
    for rank, process in enumerate(getattr(trainer.strategy.launcher, "procs", None) or [], start=1):
        for _ in range(20):  # the system may report its end a moment later
            code = process.poll()
            if code is not None:
                how = f"by signal {-code}" if code < 0 else f"with code {code}"
                return f"process {rank} of this run has ended {how}; {_CONTINUE}"
            time.sleep(0.1)
    return f"another process of this run has ended; {_CONTINUE}"


@contextlib.contextmanager
def dead_workers_reported_once() -> Iterator[None]:
    """Within the block, print no traceback of a worker's death where it cannot be raised.

    Torch raises it in a signal handler, also while loaders are shut down; the next request for a batch raises it again.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_value is None or dead_worker(unraisable.exc_value, 0) is None:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
