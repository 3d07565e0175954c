from __future__ import annotations

import logging
from typing import Any

import pytest
from omegaconf import OmegaConf

from nest_ssl.config.machine import Machine
from nest_ssl.training.advice import BottleneckNotice
from nest_ssl.training.callbacks.throughput import Throughput

CFG = OmegaConf.create({"model": {"train_ds": {"batch_size": 8, "num_workers": 1, "prefetch_factor": 2}}})


@pytest.mark.parametrize(
    ("loading", "step", "said"),
    [(1.0, 2.0, 1), (0.01, 4.0, 0), (0.2, 0.1, 0)],
    ids=["slow data, for minutes", "slow steps", "slow data, but not for long"],
)
def test_a_minute_of_waiting_gives_one_line(
    loading: float, step: float, said: int, fit: Any, speech: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    throughput = Throughput(sample_rate=16000, clock=clock)
    notice = BottleneckNotice(throughput, CFG, Machine.here())
    model = speech(clips=60, loading=loading, step=step)
    with caplog.at_level(logging.INFO, logger="nest_ssl"):
        fit(model, max_epochs=1, limit_val_batches=0, callbacks=[throughput, notice], profiler=throughput.fetch_clock)
    lines = [line for line in caplog.messages if line.startswith("data is the bottleneck")]
    assert len(lines) == said
    assert all("to speed up: model.train_ds." in line for line in lines)
