"""The word that data is too slow, while there is still most of a run to gain from it."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig

from nest_ssl.config.machine import Machine
from nest_ssl.training.advice import Setup, data_notice
from nest_ssl.training.callbacks.throughput import Throughput

_log = logging.getLogger(__name__)
_A_WHILE, _FEWEST_BATCHES = 60.0, 20  # seconds of training and batches: less says nothing


class BottleneckNotice(Callback):
    """Looks at one minute of training after the other, and speaks once, of the first that waited much for data."""

    def __init__(self, throughput: Throughput, cfg: DictConfig, machine: Machine) -> None:
        self.throughput = throughput
        self._cfg, self._machine = cfg, machine
        self._since = throughput.measured()
        self._said = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._said or not trainer.is_global_zero:
            return
        total = self.throughput.measured()
        seconds, batches = total.training_seconds - self._since.training_seconds, total.batches - self._since.batches
        if seconds < _A_WHILE or batches < _FEWEST_BATCHES:
            return
        notice = data_notice(total.since(self._since), Setup.of(self._cfg, trainer, self._machine))
        self._since, self._said = total, notice is not None
        if notice:
            _log.info(notice)
