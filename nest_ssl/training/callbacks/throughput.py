"""How fast a run trains and what its time goes into, measured without making the GPU wait.

Every moment of training belongs to one activity: waiting for data, a step, validation (with the checkpoints after it),
or what lies between them. Lengths of audio are summed where the batch is, and read only when they are shown.
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

Activity = Literal["starting", "waiting", "stepping", "validating", "between"]
_FETCH = ".train_dataloader_next"  # what Lightning calls asking the loader for a batch
_RECENT_STEPS = 20
_NOTHING = nullcontext()


@dataclass(frozen=True)
class TimeBreakdown:
    """Batches trained in a stretch of a run, their audio, and the seconds that each activity took.

    Of several processes (`over_processes`): the batches and seconds of one, the audio of all.
    """

    batches: int = 0
    samples: Tensor | int = 0  # of speech; on the device until somebody asks
    padded_samples: int = 0  # with the padding of the batches
    starting: float = 0.0  # of an epoch: until its first batch is there
    waiting: float = 0.0  # for every other batch
    stepping: float = 0.0
    validating: float = 0.0
    between: float = 0.0  # logging, callbacks, copies to the device
    sample_rate: int = 16000

    def since(self, earlier: TimeBreakdown) -> TimeBreakdown:
        """The part that came after `earlier`."""
        return replace(
            self,
            batches=self.batches - earlier.batches,
            samples=self.samples - earlier.samples,
            padded_samples=self.padded_samples - earlier.padded_samples,
            starting=self.starting - earlier.starting,
            waiting=self.waiting - earlier.waiting,
            stepping=self.stepping - earlier.stepping,
            validating=self.validating - earlier.validating,
            between=self.between - earlier.between,
        )

    def plus(self, more: TimeBreakdown) -> TimeBreakdown:
        """This stretch and another one."""
        return self.since(TimeBreakdown().since(more))

    def over_processes(self, trainer: Trainer) -> TimeBreakdown:
        """What all processes did in this stretch: their audio together, and the wait of the one that waited longest.

        The others wait for that one within their steps, where it looks like work.
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
        """Seconds of speech trained on; asking waits for the device."""
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
        """Real seconds of audio in a second of the padded batches."""
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
        self._everywhere: TimeBreakdown | None = None  # of all ranks until the last log, where there are several
        self._latest: TimeBreakdown | None = None  # and between the last two
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
            self._log(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.turn_to("validating")  # and saving, until the next batch is asked for

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.turn_to("between")
        if self._everywhere is not None:
            self._window(trainer)

    def recent(self) -> TimeBreakdown:
        """How fast the run is now: the last few batches, or what all processes did before the last log."""
        return self.total.since(self._recent[0]) if self._latest is None else self._latest

    def measured(self) -> TimeBreakdown:
        """The run without its first batch, slower than the others; of several processes, up to the last log."""
        return self.total.since(self._warm) if self._everywhere is None else self._everywhere

    def turn_to(self, activity: Activity) -> None:
        """The time until now went into the former activity; from now on, this one."""
        now = self._clock()
        former = self._activity
        if former in ("starting", "waiting") and self._step_done is not None and not self._step_done.query():
            former = "stepping"  # the GPU was still at the last step, so nothing waited
        seconds: Any = {former: getattr(self.total, former) + now - self._since}
        self.total = replace(self.total, **seconds)
        self._activity, self._since = activity, now

    def fetch(self) -> None:
        """A batch is asked for; the first of an epoch counts to its start."""
        if self._activity != "starting":
            self.turn_to("waiting")

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        window = self._window(trainer)
        names = ("audio_seconds_per_second", "data_wait_share", "padding_efficiency")
        pl_module.log_dict({name: getattr(window, name) for name in names}, on_step=True, batch_size=1)

    def _window(self, trainer: Trainer) -> TimeBreakdown:
        """What was done since the last call, by all processes."""
        window, self._logged = self.total.since(self._logged), self.total
        if self._everywhere is not None:
            window = self._latest = window.over_processes(trainer)
            self._everywhere = self._everywhere.plus(window)
        return window


class FetchClock(PassThroughProfiler):
    """Lightning's way to be told when training asks for a batch and when it has it."""

    def __init__(self, throughput: Throughput) -> None:
        super().__init__()
        self._throughput = throughput

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]
        """Lightning wraps every hook of every callback in this, hundreds of times a step; a fetch is not among them."""
        return _NOTHING

    def start(self, action_name: str) -> None:
        if action_name.endswith(_FETCH):
            self._throughput.fetch()

    def stop(self, action_name: str) -> None:
        if action_name.endswith(_FETCH):
            self._throughput.turn_to("between")
