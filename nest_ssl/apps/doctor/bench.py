"""A process of its own for the steps: it may run out of memory, this one may not."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from nest_ssl.apps.doctor.steps import Outcome, Steps, Trial
from nest_ssl.errors import NestError, one_line
from nest_ssl.memory import end_above

_SECONDS_TO_END = 5.0


class TrialError(NestError):
    """The trial cannot go on; the rest of what doctor says stands."""


class StartError(TrialError):
    """The model cannot be built here, or not take a step: neither could a run."""


class OutOfTime(Exception):
    """The minutes given are over."""


@dataclass(frozen=True)
class _Ready:
    weight_bytes: int


class Bench:
    """Measures trials of one `model` node; started when first needed, and again after one that was too large.

    `memory` is what a process may have, in bytes: on a CPU all it holds, on a GPU what it reserves there.
    """

    def __init__(self, settings: Mapping[str, Any], device: str, memory: int, deadline: float) -> None:
        self.settings, self.device, self.memory, self.deadline = settings, device, memory, deadline
        self.weight_bytes = 0
        self._process: Any = None
        self._connection: Connection | None = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def remaining(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()

    def measure(self, trial: Trial) -> Outcome:
        """One trial; OutOfTime if the deadline comes first."""
        if self._connection is None:
            self._start()
        assert self._connection is not None
        self._connection.send(trial)
        answer = self._answer()
        if answer is None:
            return Outcome(trial, None)
        return answer

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.terminate()
            self._process.join(_SECONDS_TO_END)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA cannot be used in a fork
        self._connection, theirs = context.Pipe()
        arguments = (theirs, dict(self.settings), self.device, self.memory)
        self._process = context.Process(target=serve, args=arguments, name="nest-ssl doctor trial")
        self._process.start()
        theirs.close()
        try:
            ready = self._answer()
        except TrialError as error:
            raise StartError(str(error)) from None
        if ready is None:
            raise StartError(
                "the model by itself, with its gradients and moments, needs more memory than is free (+size=small?)"
            )
        self.weight_bytes = ready.weight_bytes

    def _answer(self) -> Any:
        """What the process says, None if it ended itself for want of memory."""
        assert self._connection is not None
        try:
            if not self._connection.poll(max(0.0, self.remaining())):
                self.stop()
                raise OutOfTime
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            self.stop()
            return None
        if isinstance(answer, str):
            self.stop()
            raise TrialError(answer)
        return answer


def serve(connection: Connection, settings: Mapping[str, Any], device: str, memory: int) -> None:
    """The process: a model, then one measurement after another until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asks
    logging.disable(logging.CRITICAL)
    try:
        if device == "cuda":
            _, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total))
        else:
            end_above(memory)
        steps = Steps(settings, device)
        steps.warm_up()
        connection.send(_Ready(steps.weight_bytes))
        while True:
            connection.send(steps.measure(connection.recv()))
    except (EOFError, ConnectionError):
        return
    except NestError as error:
        connection.send(str(error))
    except Exception as error:
        connection.send(f"{type(error).__name__}: {one_line(error)}")
