"""Training steps of the real model on random audio: duration and peak memory of one step.

The steps run in a process of their own (`TrialProcess`): it may run out of memory, the doctor may not.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from omegaconf import OmegaConf

from nest_ssl.data import AudioNoiseBatch
from nest_ssl.data.audio.sample_rate import sample_rate_of
from nest_ssl.errors import NestError, one_line
from nest_ssl.memory import end_above, peak_bytes, reset_peak, used_bytes
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.training.optim import build_optimizer, clip_or_drop, parameter_groups, with_fused_kernel

_FEWEST, _SECONDS = 2, 0.5  # steps and time of one measurement
_LONG = 4.0  # seconds: a step that takes this long is measured once
_HALF = {"16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Trial:
    """A batch to measure: so many clips of so many seconds, in a `trainer.precision`."""

    batch_size: int
    seconds: float
    precision: str = "32"

    @property
    def audio(self) -> float:
        """Seconds of audio in the batch."""
        return self.batch_size * self.seconds


@dataclass(frozen=True)
class Outcome:
    """Time and memory of one step of a trial; `seconds` is None if it ran out of memory."""

    trial: Trial
    seconds: float | None
    peak: int = 0  # bytes of the whole process
    resting: int = 0  # bytes between steps: weights, gradients, moments, libraries

    @property
    def fits(self) -> bool:
        return self.seconds is not None

    @property
    def speed(self) -> float:
        """Throughput: seconds of audio per second."""
        return self.trial.audio / self.seconds if self.seconds else 0.0


class Steps:
    """The model and optimizer of a `model` node, on which trials are measured."""

    def __init__(self, settings: Mapping[str, Any], device: str) -> None:
        self.device = torch.device(device)
        self.sample_rate = int(sample_rate_of(settings))
        torch.manual_seed(0)
        self.model = EncDecDenoiseMaskedTokenPredModel(cfg=OmegaConf.create(dict(settings))).to(self.device)
        self.model.train()
        options = with_fused_kernel(settings["optim"]) if self.model.fast else settings["optim"]
        self.optimizer = build_optimizer(parameter_groups(self.model, settings.get("optim_param_groups")), options)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0  # the weights stay as they are; the optimizer does all of its work
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)

    def warm_up(self) -> None:
        """Run one small step, which allocates the moments and loads kernels, so that they count in no measurement."""
        self._step(self._batch(Trial(1, 1.0)), "32")

    def measure(self, trial: Trial) -> Outcome:
        """Run some steps on one batch; return the fastest time and the highest peak."""
        self._reset()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=trial.precision.startswith("16"))
        taken: list[float] = []
        try:
            batch = self._batch(trial)
            while not _enough(taken):
                began = time.perf_counter()
                self._step(batch, trial.precision)
                taken.append(time.perf_counter() - began)
        except (RuntimeError, MemoryError) as error:  # torch raises RuntimeError when the system refuses memory
            if isinstance(error, RuntimeError) and "alloc" not in str(error).lower():
                raise
            self.optimizer.zero_grad()
            self._reset()
            return Outcome(trial, None)
        if self.device.type == "cuda":
            peak, resting = torch.cuda.max_memory_reserved(self.device), torch.cuda.memory_allocated(self.device)
        else:
            peak, resting = peak_bytes(), used_bytes()
        return Outcome(trial, min(taken), peak, resting)

    def _step(self, batch: AudioNoiseBatch, precision: str) -> None:
        half = _HALF.get(precision.removesuffix("-mixed"))
        with torch.autocast(self.device.type, dtype=half, enabled=half is not None):
            loss = self.model.predict_masked(batch).loss
        self.scaler.scale(loss).backward()
        if not self.scaler.is_enabled():
            clip_or_drop(list(self.model.parameters()), None)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.optimizer.zero_grad()

    def _batch(self, trial: Trial) -> AudioNoiseBatch:
        """Return a batch of random audio without padding, which needs the most memory for its size."""
        samples = round(trial.seconds * self.sample_rate)
        audio, noise = 0.1 * torch.randn(2, trial.batch_size, samples, device=self.device)
        lengths = torch.full((trial.batch_size,), samples, device=self.device)
        return AudioNoiseBatch(
            audio=audio,
            audio_len=lengths,
            noise=noise,
            noise_len=lengths,
            noisy_audio=audio + noise,
            noisy_audio_len=lengths,
        )

    def _reset(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            reset_peak()


def _enough(taken: list[float]) -> bool:
    return (len(taken) >= _FEWEST and sum(taken) >= _SECONDS) or (bool(taken) and taken[0] > _LONG)


class TrialError(NestError):
    """A step failed, so the trial ends; the other checks stay valid."""


class StartError(TrialError):
    """The model cannot be built or trained here, so a run would fail too."""


class OutOfTime(Exception):
    """The time for the trial is over."""


class TrialProcess:
    """A process that measures trials of one `model` node.

    It starts with the first trial, and again after a trial that ran out of memory. `memory` is its limit in bytes: of
    the whole process on a CPU, of the reserved GPU memory on a GPU.
    """

    def __init__(self, settings: Mapping[str, Any], device: str, memory: int, deadline: float) -> None:
        self.settings, self.device, self.memory, self.deadline = settings, device, memory, deadline
        self._process: Any = None
        self._connection: Connection | None = None

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def measure(self, trial: Trial) -> Outcome:
        """Measure one trial; raise OutOfTime if the deadline comes first."""
        if self._connection is None:
            self._start()
        assert self._connection is not None
        self._connection.send(trial)
        return self._answer() or Outcome(trial, None)

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()  # it writes no files
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
        if not ready:
            raise StartError(
                "the model, its gradients and its optimizer state need more memory than is free (+size=small?)"
            )

    def _answer(self) -> Any:
        """Return the answer of the process; None if it ran out of memory and ended."""
        assert self._connection is not None
        try:
            if not self._connection.poll(max(0.0, self.deadline - time.monotonic())):
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
    """Build the model, then measure one trial after another until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    logging.disable(logging.CRITICAL)
    try:
        if device == "cuda":
            _, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total))
        else:
            end_above(memory)
        steps = Steps(settings, device)
        steps.warm_up()
        connection.send(True)  # ready
        while True:
            connection.send(steps.measure(connection.recv()))
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        connection.send(str(error) if isinstance(error, NestError) else f"{type(error).__name__}: {one_line(error)}")
