"""How fast a run trains and where its time goes, measured without host-device synchronisation.

Every moment of training belongs to one activity: waiting for data, a step, validation (with the checkpoints after it),
or what lies between them. Lengths of audio are summed on the device of the batch, and read only when they are shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor

from nest_ssl.data import AudioNoiseBatch
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.training.run_length import will_log

Activity = Literal["starting", "waiting", "stepping", "validating", "between"]
_SUMMED = ("batches", "samples", "padded_samples", "starting", "waiting", "stepping", "validating", "between")
_LOGGED = ("audio_seconds_per_second", "data_wait_share", "padding_efficiency")
_FETCH = ".train_dataloader_next"  # Lightning's name for asking the loader for a batch
_RECENT_STEPS = 20
_NOTHING = nullcontext()


@dataclass(frozen=True)
class TimeBreakdown:
    """The batches trained in a part of a run, their audio, and the seconds that each activity took.

    For several ranks (`over_processes`): the batches and seconds of one, the audio of all.
    """

    batches: int = 0
    samples: Tensor | int = 0  # of speech; stays on the device until it is read
    padded_samples: int = 0  # with the padding of the batches
    starting: float = 0.0  # an epoch: until its first batch is there
    waiting: float = 0.0  # for every other batch
    stepping: float = 0.0
    validating: float = 0.0
    between: float = 0.0  # logging, callbacks, copies to the device
    sample_rate: int = SAMPLE_RATE

    def since(self, earlier: TimeBreakdown) -> TimeBreakdown:
        """Return the part that came after `earlier`."""
        differences: Any = {name: getattr(self, name) - getattr(earlier, name) for name in _SUMMED}
        return replace(self, **differences)

    def plus(self, more: TimeBreakdown) -> TimeBreakdown:
        """Return this part and another one together."""
        sums: Any = {name: getattr(self, name) + getattr(more, name) for name in _SUMMED}
        return replace(self, **sums)

    def over_processes(self, trainer: Trainer) -> TimeBreakdown:
        """Return what all ranks did in this part: the sum of their audio, and the longest wait for data of any rank.

        The other ranks wait for that one within their steps, where the wait looks like computation.
        """
        device = trainer.strategy.root_device
        audio = torch.tensor([int(self.samples), self.padded_samples], device=device)
        wait = torch.tensor([self.starting, self.waiting], device=device)
        samples, padded = trainer.strategy.reduce(audio, reduce_op="sum").tolist()
        starting, waiting = trainer.strategy.reduce(wait, reduce_op="max").tolist()
        hidden = starting + waiting - self.data_wait
        return replace(
            self,
            samples=samples,
            padded_samples=padded,
            starting=starting,
            waiting=waiting,
            stepping=max(0.0, self.stepping - hidden),
        )

    @property
    def data_wait(self) -> float:
        return self.starting + self.waiting

    @property
    def training_seconds(self) -> float:
        return self.data_wait + self.stepping + self.between

    @property
    def audio_seconds(self) -> float:
        """Seconds of speech trained on; reading it waits for the device."""
        return int(self.samples) / self.sample_rate

    @property
    def padded_seconds(self) -> float:
        """Seconds of speech and padding."""
        return self.padded_samples / self.sample_rate

    @property
    def audio_seconds_per_second(self) -> float:
        return self.audio_seconds / max(self.training_seconds, 1e-9)

    @property
    def data_wait_share(self) -> float:
        return self.data_wait / max(self.training_seconds, 1e-9)

    @property
    def padding_efficiency(self) -> float:
        """The share of the padded batches that is speech."""
        return int(self.samples) / max(self.padded_samples, 1)


class Throughput(Callback):
    """Logs `audio_seconds_per_second`, `data_wait_share` and `padding_efficiency` as often as the trainer logs."""

    def __init__(self, sample_rate: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.total = TimeBreakdown(sample_rate=sample_rate)
        self._clock = clock
        self.fetch_clock = FetchClock(self)
        self._activity: Activity = "between"
        self._since = clock()
        self._step_done: torch.cuda.Event | None = None
        self._logged = self._warm = self.total
        self._logged_step = 0
        self._everywhere: TimeBreakdown | None = None  # with several ranks: of all until the last log
        self._latest: TimeBreakdown | None = None  # and between the last two logs
        self._recent: deque[TimeBreakdown] = deque([self.total], maxlen=_RECENT_STEPS + 1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since, self._logged_step = self._clock(), trainer.global_step
        if trainer.world_size > 1:
            self._everywhere = TimeBreakdown(sample_rate=self.total.sample_rate)
        if trainer.strategy.root_device.type == "cuda":
            self._step_done = torch.cuda.Event()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.turn_to("starting")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: AudioNoiseBatch, batch_idx: int
    ) -> None:
        self.turn_to("stepping")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: AudioNoiseBatch, batch_idx: int
    ) -> None:
        self.turn_to("between")
        if self._step_done is not None:
            self._step_done.record()
        self.total = replace(
            self.total,
            batches=self.total.batches + 1,
            samples=self.total.samples + batch.audio_len.sum(),
            padded_samples=self.total.padded_samples + batch.audio.numel(),
        )
        self._recent.append(self.total)
        if self.total.batches == 1:
            self._warm = self.total
        step, every = trainer.global_step, trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and step % every == 0 and step != self._logged_step:
            self._logged_step = step
            window = self._window(trainer)
            pl_module.log_dict({name: getattr(window, name) for name in _LOGGED}, on_step=True, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.turn_to("validating")  # and saving, until the next batch is requested

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.turn_to("between")
        if self._everywhere is not None:
            self._window(trainer)

    def recent(self) -> TimeBreakdown:
        """Return the speed of the last few batches or, with several ranks, of all ranks between the last two logs."""
        return self.total.since(self._recent[0]) if self._latest is None else self._latest

    def measured(self) -> TimeBreakdown:
        """Return the run without its first batch, which is slow; with several ranks, up to the last log."""
        return self.total.since(self._warm) if self._everywhere is None else self._everywhere

    def turn_to(self, activity: Activity) -> None:
        """Add the time until now to the former activity, and begin this one."""
        now = self._clock()
        former = self._activity
        if former in ("starting", "waiting") and self._step_done is not None and not self._step_done.query():
            former = "stepping"  # the GPU was still busy with the last step, so nothing waited
        seconds: Any = {former: getattr(self.total, former) + now - self._since}
        self.total = replace(self.total, **seconds)
        self._activity, self._since = activity, now

    def fetch(self) -> None:
        """A batch is requested; the wait for the first of an epoch counts as `starting`."""
        if self._activity != "starting":
            self.turn_to("waiting")

    def _window(self, trainer: Trainer) -> TimeBreakdown:
        """Return what all ranks did since the last call."""
        window, self._logged = self.total.since(self._logged), self.total
        if self._everywhere is not None:
            window = self._latest = window.over_processes(trainer)
            self._everywhere = self._everywhere.plus(window)
        return window


class FetchClock(PassThroughProfiler):
    """Learns, as a profiler, when training requests a batch and when it has it: Lightning has no hook for that."""

    def __init__(self, throughput: Throughput) -> None:
        super().__init__()
        self._throughput = throughput

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]
        """Do nothing: Lightning calls this for every hook, hundreds of times a step, and never for a fetch."""
        return _NOTHING

    def start(self, action_name: str) -> None:
        if action_name.endswith(_FETCH):
            self._throughput.fetch()

    def stop(self, action_name: str) -> None:
        if action_name.endswith(_FETCH):
            self._throughput.turn_to("between")


class StepTiming(Callback):
    """Logs the seconds of a training step, without data loading, under NeMo's name; the mean over ranks."""

    def __init__(self) -> None:
        self._start = 0.0
        self._wanted = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._wanted = will_log(trainer)
        self._start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._wanted:
            seconds, several = time.perf_counter() - self._start, trainer.world_size > 1
            pl_module.log("train_step_timing in s", seconds, on_step=True, batch_size=1, sync_dist=several)
