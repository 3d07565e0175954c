"""Steps of the real model on made-up audio: how long one takes and how much memory it needs at its peak."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf

from nest_ssl.data import AudioNoiseBatch
from nest_ssl.memory import peak_bytes, reset_peak, used_bytes
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.training.optim import build_optimizer, clip_or_drop, parameter_groups, with_fused_kernel

_FEWEST, _SECONDS = 2, 0.5  # steps and time of one measurement
_LONG = 4.0  # seconds: a step that takes this long is measured once
_HALF = {"16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Trial:
    """A batch to try: how many clips of how many seconds, in which precision of `trainer.precision`."""

    batch_size: int
    seconds: float
    precision: str = "32"

    @property
    def audio(self) -> float:
        """Seconds in the batch."""
        return self.batch_size * self.seconds


@dataclass(frozen=True)
class Outcome:
    """What a step of a trial takes; without seconds, it needs more memory than there is."""

    trial: Trial
    seconds: float | None
    peak: int = 0  # bytes, of everything the process holds
    resting: int = 0  # bytes between steps: weights, gradients, moments, the libraries

    @property
    def fits(self) -> bool:
        return self.seconds is not None

    @property
    def speed(self) -> float:
        """Seconds of audio a second."""
        return self.trial.audio / self.seconds if self.seconds else 0.0


class Steps:
    """The model and optimiser of a `model` node, ready to train on any batch."""

    def __init__(self, settings: Mapping[str, Any], device: str) -> None:
        self.device = torch.device(device)
        self.sample_rate = int(settings.get("sample_rate") or 16000)
        torch.manual_seed(0)
        self.model = EncDecDenoiseMaskedTokenPredModel(cfg=OmegaConf.create(dict(settings))).to(self.device)
        self.model.train()
        options = with_fused_kernel(settings["optim"]) if self.model.fast else settings["optim"]
        self.optimizer = build_optimizer(parameter_groups(self.model, settings.get("optim_param_groups")), options)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0  # nothing is learnt from noise; moments are made and moved all the same
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)

    @property
    def weight_bytes(self) -> int:
        """Of what is trained."""
        return sum(parameter.nbytes for parameter in self.model.parameters() if parameter.requires_grad)

    def warm_up(self) -> None:
        """One small step, which makes moments and loads kernels: what comes after it grows with the batch alone."""
        self._step(self._batch(Trial(1, 1.0)), "32")

    def measure(self, trial: Trial) -> Outcome:
        """Some steps on one batch: the quickest of them, and the highest peak."""
        self._reset()
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=trial.precision.startswith("16"))
        taken: list[float] = []
        try:
            batch = self._batch(trial)
            while not _enough(taken):
                began = time.perf_counter()
                self._step(batch, trial.precision)
                taken.append(time.perf_counter() - began)
        except (torch.OutOfMemoryError, MemoryError):
            self._forget_step()
            return Outcome(trial, None)
        except RuntimeError as error:  # what torch raises where the system refuses memory
            if "alloc" not in str(error).lower():
                raise
            self._forget_step()
            return Outcome(trial, None)
        return Outcome(trial, min(taken), self._peak(), self._resting())

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
        """Noise of full length everywhere: no batch of these sizes needs more."""
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

    def _forget_step(self) -> None:
        """After a step that broke off: what it left in memory."""
        self.optimizer.zero_grad()
        self._reset()

    def _reset(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            reset_peak()

    def _peak(self) -> int:
        return torch.cuda.max_memory_reserved(self.device) if self.device.type == "cuda" else peak_bytes()

    def _resting(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else used_bytes()


def _enough(taken: list[float]) -> bool:
    return (len(taken) >= _FEWEST and sum(taken) >= _SECONDS) or (bool(taken) and taken[0] > _LONG)
