"""The processes of one run: they start from the same frozen weights, and none outlives another for long."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, distributed

from nest_ssl.errors import NestError
from nest_ssl.exit_codes import FAILED

_FIRST = "NEST_SSL_FIRST_PROCESS"  # in the environment of those whom it starts: its number
_LOST = re.compile(r"closed by peer|reset by peer|broken pipe|timed out|remote process", re.IGNORECASE)


class Ranks(Callback):
    """Looks after the other processes, where there are any."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size == 1:
            return
        frozen = [(name, value) for name, value in pl_module.named_parameters() if not value.requires_grad]
        refuse_different_weights(frozen)


def leave_with_the_first_process(trainer: Trainer) -> None:
    """From now on this process ends when the one that started it is gone.

    Before they are connected it would wait for it for half an hour, and on a GPU it could for ever. Where somebody else
    starts the processes (torchrun, SLURM), that one ends them too.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if not isinstance(environment, LightningEnvironment):
        return
    if environment.local_rank() == 0:
        os.environ[_FIRST] = str(os.getpid())  # for those whom it starts
    elif _FIRST in os.environ:  # it may be gone by now, so the parent of this process is not the one to look for
        threading.Thread(target=_leave_after, args=(int(os.environ[_FIRST]),), daemon=True).start()


def refuse_different_weights(weights: Iterable[tuple[str, Tensor]]) -> None:
    """What nobody trains nobody makes equal either: a quantizer of its own would give a process targets of its own."""
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


def lost_process(trainer: Trainer, error: BaseException) -> str | None:
    """Which process of the run has ended, if that is what an error of a collective operation means."""
    if trainer.world_size == 1 or not _LOST.search(str(error)):
        return None
    for rank, process in enumerate(getattr(trainer.strategy.launcher, "procs", None) or [], start=1):
        for _ in range(20):  # its end may take a moment to be known
            if process.poll() is not None:
                how = (
                    f"by signal {-process.returncode}" if process.returncode < 0 else f"with code {process.returncode}"
                )
                return f"process {rank} of this run has ended {how}; the same command goes on from the last checkpoint"
            time.sleep(0.1)
    return "another process of this run has ended; the same command goes on from the last checkpoint"


def _leave_after(parent: int) -> None:
    while os.getppid() == parent:  # does not change on Windows, where the connection's end has to do
        time.sleep(1)
    print("error: the first process of this run has ended; leaving", file=sys.stderr, flush=True)
    os._exit(FAILED)
