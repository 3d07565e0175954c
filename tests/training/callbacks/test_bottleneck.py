from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nest_ssl.config.machine import Machine
from nest_ssl.training.callbacks.bottleneck import BottleneckNotice
from nest_ssl.training.callbacks.throughput import Throughput

CFG = OmegaConf.create({"model": {"train_ds": {"batch_size": 8, "num_workers": 1, "prefetch_factor": 2}}})


@pytest.mark.parametrize(
    ("loading", "step", "said"),
    [(1.0, 2.0, 1), (0.01, 4.0, 0), (0.2, 0.1, 0)],
    ids=["slow data, for minutes", "slow steps", "slow data, but not for long"],
)
def test_a_minute_of_waiting_is_worth_one_line(
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


def test_full_memory_is_one_line_that_says_what_to_lower() -> None:
    import torch

    from nest_ssl.errors import NestError
    from nest_ssl.training.run import _fit

    class Trainer:
        global_step = 7

        def fit(self, model: Any, ckpt_path: Path | None) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(NestError, match=r"^the GPU's memory is full at step 7; lower model.train_ds.batch_size and"):
        _fit(Trainer(), None, None)  # type: ignore[arg-type]
