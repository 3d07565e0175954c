"""How fast a run trains and what its time goes into, measured without making the GPU wait.

Every moment of training belongs to one activity: waiting for data, a step, validation (with the checkpoints after it),
or what lies between them. Lengths of audio are summed where the batch is, and read only when they are shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
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


@dataclass(frozen=True)
class Spent:
    """Batches trained in a stretch of a run, their audio, and the seconds that each activity took."""

    batches: int = 0
    samples: Tensor | int = 0  # of speech; on the device until somebody asks
    padded_samples: int = 0  # with the padding of the batches
    starting: float = 0.0  # of an epoch: until its first batch is there
    waiting: float = 0.0  # for every other batch
    stepping: float = 0.0
    validating: float = 0.0
    between: float = 0.0  # logging, callbacks, copies to the device
    sample_rate: int = 16000

    def since(self, earlier: Spent) -> Spent:
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
        self.total = Spent(sample_rate=sample_rate)
        self._clock = clock
        self.fetch_clock = FetchClock(self)
        self._activity: Activity = "between"
        self._since = clock()
        self._step_done: torch.cuda.Event | None = None
        self._logged = self._warm = self.total
        self._logged_step = 0
        self._recent: deque[Spent] = deque([self.total], maxlen=_RECENT_STEPS + 1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since, self._logged_step = self._clock(), trainer.global_step
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

    def recent(self) -> Spent:
        """The last few batches: how fast the run is now."""
        return self.total.since(self._recent[0])

    def measured(self) -> Spent:
        """The run without its first batch, which is slower than all others."""
        return self.total.since(self._warm)

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
        window = self.total.since(self._logged)
        self._logged = self.total
        shared: dict[str, Any] = {"on_step": True, "batch_size": 1, "sync_dist": trainer.world_size > 1}
        pl_module.log("audio_seconds_per_second", window.audio_seconds_per_second, reduce_fx="sum", **shared)
        pl_module.log("data_wait_share", window.data_wait_share, **shared)
        pl_module.log("padding_efficiency", window.padding_efficiency, **shared)


class FetchClock(PassThroughProfiler):
    """Lightning's way to be told when training asks for a batch and when it has it."""

    def __init__(self, throughput: Throughput) -> None:
        super().__init__()
        self._throughput = throughput

    def start(self, action_name: str) -> None:
        if action_name.endswith(_FETCH):
            self._throughput.fetch()

    def stop(self, action_name: str) -> None:
        if action_name.endswith(_FETCH):
            self._throughput.turn_to("between")
