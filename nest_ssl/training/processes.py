"""The processes of a run, ranks and data workers: what holds them together, and what to say when one of them dies."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, distributed

from nest_ssl.errors import FAILED, NestError

_FIRST = "NEST_SSL_FIRST_PROCESS"  # environment variable with the process id of rank 0, for the ranks that it starts
_LOST_RANK = re.compile(r"closed by peer|reset by peer|broken pipe|timed out|remote process", re.IGNORECASE)
_DEAD_WORKER = re.compile(  # torch's words, from its handler of a child's end or from the next request for a batch
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?:is killed by signal: (?P<signal>[^.]+)|exited)"
)
_CONTINUE = "the same command continues from the last checkpoint"


class Ranks(Callback):
    """Checks before the first step that all ranks have the same frozen weights."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
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


def leave_with_the_first_process(trainer: Trainer) -> None:
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


def lost_process(trainer: Trainer, error: BaseException) -> str | None:
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


def _lost_rank(trainer: Trainer, error: BaseException) -> str | None:
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
