from __future__ import annotations

import csv
import statistics
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.loggers import CSVLogger

from nest_ssl.training.callbacks.throughput import Throughput, TimeBreakdown


@pytest.fixture
def measure(fit: Any, clock: Any) -> Any:
    """Return a function that trains and returns the measured throughput and the trainer."""

    def measure(model: pl.LightningModule, **arguments: Any) -> tuple[Throughput, pl.Trainer]:
        throughput = Throughput(sample_rate=16000, clock=clock)
        trainer = fit(model, callbacks=[throughput], profiler=throughput.fetch_clock, **arguments)
        return throughput, trainer

    return measure


def test_audio_is_counted_without_its_padding(measure: Any, speech: Any) -> None:
    throughput, _ = measure(speech(clips=4), max_epochs=1, limit_val_batches=0)
    assert throughput.total.batches == 2
    assert throughput.total.audio_seconds == 1 + 2 + 3 + 4
    assert throughput.total.padding_efficiency == pytest.approx(10 / (2 * 2 + 2 * 4))


@pytest.mark.parametrize(("loading", "step", "share"), [(0.05, 0.0, 1.0), (0.0, 0.1, 0.0), (0.05, 0.1, 0.5)])
def test_the_share_of_waiting_equals_that_of_loading(
    measure: Any, speech: Any, loading: float, step: float, share: float
) -> None:
    throughput, _ = measure(speech(clips=8, loading=loading, step=step), max_epochs=1, limit_val_batches=0)
    assert throughput.measured().data_wait_share == pytest.approx(share)


def test_every_second_of_the_run_is_counted_once(measure: Any, speech: Any, clock: Any) -> None:
    model = speech(clips=6, loading=0.02, step=0.03, validation=0.2)
    start = clock()
    throughput, _ = measure(model, max_epochs=2)
    total = throughput.total
    assert total.validating == pytest.approx(2 * 0.2)
    assert total.stepping == pytest.approx(6 * 0.03)
    assert total.starting == pytest.approx(2 * 2 * 0.02)  # the first batch of two epochs
    assert total.data_wait == pytest.approx(total.starting + (12 - 2 * 2) * 0.02)
    assert total.training_seconds + total.validating == pytest.approx(clock() - start)


def test_validation_does_not_count_as_slow_training(measure: Any, speech: Any) -> None:
    quick, _ = measure(speech(clips=8, step=0.05), max_epochs=1, limit_val_batches=0)
    slow, _ = measure(speech(clips=8, step=0.05, validation=0.5), max_epochs=1, val_check_interval=1)
    speeds = [each.measured().audio_seconds_per_second for each in (quick, slow)]
    assert speeds[1] == pytest.approx(speeds[0])


def logged(logger: CSVLogger) -> list[dict[str, float]]:
    with Path(logger.log_dir, "metrics.csv").open(encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    return [row for row in rows if "padding_efficiency" in row]


def test_metrics_are_logged_at_the_interval_of_the_trainer(measure: Any, speech: Any, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    measure(speech(clips=12, step=0.01), max_epochs=1, limit_val_batches=0, logger=logger, log_every_n_steps=3)
    rows = logged(logger)
    assert len(rows) == 2
    # Batches of 1-6 s, then of 7-12 s; a step takes 10 ms for each second of audio, plus the overhead of the machine
    assert 0 < rows[0]["audio_seconds_per_second"] <= 21 / 0.03
    assert 0 <= rows[0]["data_wait_share"] <= 1
    assert rows[0]["padding_efficiency"] == pytest.approx(21 / 24)
    assert rows[1]["padding_efficiency"] == pytest.approx(57 / 60)


def test_accumulated_batches_are_logged_once_for_each_step(measure: Any, speech: Any, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    arguments = {"accumulate_grad_batches": 3, "log_every_n_steps": 1, "logger": logger}
    measure(speech(clips=12), max_epochs=1, limit_val_batches=0, **arguments)
    assert [row["padding_efficiency"] for row in logged(logger)] == pytest.approx([21 / 24, 57 / 60])


class Busy:
    """A CUDA event that marks the end of a step."""

    def __init__(self, done: bool) -> None:
        self.done = done

    def record(self) -> None:
        return

    def query(self) -> bool:
        return self.done


@pytest.mark.parametrize("done", [True, False])
def test_loading_while_the_gpu_still_computes_is_not_waiting(done: bool, clock: Any) -> None:
    throughput = Throughput(sample_rate=16000, clock=clock)
    throughput._step_done = Busy(done)  # type: ignore[assignment]
    throughput.fetch_clock.start("[_TrainingEpochLoop].train_dataloader_next")
    clock.sleep(0.01)
    throughput.fetch_clock.stop("[_TrainingEpochLoop].train_dataloader_next")
    assert (throughput.total.data_wait > 0) is done
    assert (throughput.total.stepping > 0) is not done


def test_lengths_are_read_only_when_they_are_needed() -> None:
    class Device:
        """A number on a device, of which reading the value would wait for the device."""

        def __init__(self) -> None:
            self.read = 0

        def __sub__(self, other: int) -> Device:
            return self

        def __int__(self) -> int:
            self.read += 1
            return 32000

    device = Device()
    spent = TimeBreakdown(samples=device, stepping=1.0).since(TimeBreakdown())  # type: ignore[arg-type]
    assert device.read == 0
    assert spent.audio_seconds == 2.0


def test_the_cost_is_small_compared_with_the_shortest_step(fit: Any, speech: Any) -> None:
    spent: list[float] = []

    class Timed(Throughput):
        """Measures the time of every hook that Lightning calls in a step."""

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            return timed(value) if name in ("on_train_batch_start", "on_train_batch_end", "fetch") else value

    def timed(hook: Any) -> Any:
        def run(*arguments: Any) -> None:
            start = time.process_time()
            hook(*arguments)
            spent.append(time.process_time() - start)

        return run

    throughput = Timed(sample_rate=16000)
    profiler = throughput.fetch_clock
    fit(speech(clips=2), max_steps=200, limit_val_batches=0, callbacks=[throughput], profiler=profiler)
    assert len(spent) >= 600
    hooks_of_a_step = len(spent) / 200
    assert statistics.median(spent) * hooks_of_a_step < 1e-3  # a mean would include other work of the machine
