from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from nest_ssl.training.advice import Setup, advice, data_notice
from nest_ssl.training.callbacks.throughput import TimeBreakdown

STEADY = TimeBreakdown(
    batches=100, samples=100 * 16000 * 9, padded_samples=100 * 16000 * 10, stepping=98.0, waiting=1.0, between=1.0
)
TUNED = Setup(gpu=True, cores=16, memory_used=0.9, exact=False, precision="bf16-mixed", batch_size=32, num_workers=8)


def lines(spent: dict[str, Any] | None = None, **setup: Any) -> list[str]:
    return advice(dataclasses.replace(STEADY, **(spent or {})), dataclasses.replace(TUNED, **setup))


def test_a_well_configured_run_gets_a_verdict_and_no_advice() -> None:
    (verdict,) = lines()
    assert verdict == (
        "speed: 9 s of audio a second, padding efficiency 90%, 1% of the time waiting for data: "
        "compute is the bottleneck"
    )


@pytest.mark.parametrize("spent", [{"batches": 10}, {"stepping": 5.0}, {"batches": 0, "stepping": 0.0}])
def test_a_too_short_run_gets_no_verdict(spent: dict[str, Any]) -> None:
    assert lines({"waiting": 1.0, **spent}, num_workers=0) == []


class _Strategy:
    """Reduces values over four processes that all have the same value."""

    root_device = torch.device("cpu")

    def reduce(self, tensor: torch.Tensor, reduce_op: str) -> torch.Tensor:
        return tensor * 4 if reduce_op == "sum" else tensor


class _Trainer:
    strategy = _Strategy()


def test_four_processes_train_on_four_times_as_much_audio() -> None:
    one = dataclasses.replace(STEADY, samples=100 * 16000 * 80, padded_samples=100 * 16000 * 160)
    assert lines(vars(one))[0].startswith("speed: 80 s of audio a second, padding efficiency 50%")
    four = one.over_processes(_Trainer())  # type: ignore[arg-type]
    verdict, knob = lines(vars(four), processes=4)
    assert verdict.startswith("speed: 320 s of audio a second, padding efficiency 50%")
    assert knob.startswith("to speed up: model.train_ds.batch_duration=160 model.train_ds.batch_size=null")


@pytest.mark.parametrize(
    ("setup", "knob"),
    [
        ({"num_workers": 0}, "model.train_ds.num_workers=8 model.train_ds.persistent_workers=true"),
        ({"num_workers": 0, "cores": 4}, "model.train_ds.num_workers=3 model.train_ds.persistent_workers=true"),
        (
            {"num_workers": 0, "gpu": False, "cores": 2},
            "model.train_ds.num_workers=1 model.train_ds.persistent_workers=true",
        ),
        ({"num_workers": 2}, "model.train_ds.num_workers=4"),
        ({"num_workers": 8}, "model.train_ds.prefetch_factor=4"),
        ({"num_workers": 8, "prefetch_factor": 4}, "keep the audio on a local SSD"),
    ],
)
def test_if_loading_is_slow_the_advice_names_a_loader_option(setup: dict[str, Any], knob: str) -> None:
    verdict, first, *_ = lines({"waiting": 100.0}, **setup)
    assert "51% of the time waiting for data: data is the bottleneck" in verdict or "50% of" in verdict
    assert first.startswith(f"to speed up: {knob}")


def test_for_many_small_files_the_advice_is_tar_files() -> None:
    last = {"num_workers": 8, "prefetch_factor": 4}
    assert "nest-ssl data tar" in lines({"waiting": 100.0}, **last)[2]
    assert not any("data tar" in line for line in lines({"waiting": 100.0}, **last, tarred=True))


def test_during_training_one_line_reports_slow_loading() -> None:
    slow = dataclasses.replace(STEADY, waiting=50.0)
    notice = data_notice(slow, dataclasses.replace(TUNED, num_workers=2))
    assert notice is not None
    assert notice.startswith("data is the bottleneck: 34% of the last 149 s went into waiting for it; to speed up: ")
    assert "model.train_ds.num_workers=4" in notice
    assert data_notice(STEADY, TUNED) is None


def test_one_core_cannot_load_and_compute_at_once() -> None:
    assert not any("num_workers" in line for line in lines({"waiting": 100.0}, num_workers=0, cores=1, gpu=False))


def test_workers_that_start_with_every_epoch_should_persist() -> None:
    assert "persistent_workers=true" in lines({"starting": 50.0})[1]
    assert not any("persistent" in line for line in lines({"starting": 50.0}, persistent_workers=True))


@pytest.mark.parametrize(
    ("spent", "setup", "knob"),
    [
        (
            {"padded_samples": 100 * 16000 * 30},
            {"exact": True, "batch_size": None},
            "model.numerics=fast (no work on padding, 70%",
        ),
        (
            {"padded_samples": 100 * 16000 * 30},
            {},
            "model.train_ds.batch_duration=30 model.train_ds.batch_size=null (batches of similar lengths",
        ),
        ({}, {"precision": "32-true", "bf16": True}, "trainer.precision=bf16-mixed"),
        ({}, {"precision": "32-true", "bf16": False}, "trainer.precision=16-mixed"),
        ({}, {"memory_used": 0.3}, "model.train_ds.batch_size=64 (70% of the GPU's memory"),
        ({}, {"gpu": False, "batch_size": 2}, "model.train_ds.batch_size=8"),
        ({}, {"pin_memory": False}, "model.train_ds.pin_memory=true"),
        ({"between": 10.0}, {"log_every_n_steps": 10}, "trainer.log_every_n_steps=50"),
        ({"validating": 50.0}, {"val_check_interval": 1000}, "trainer.val_check_interval=2000 (validation"),
        ({"validating": 50.0}, {"val_check_interval": 0.25}, "trainer.val_check_interval=0.5 "),
        ({"validating": 50.0}, {"val_check_interval": 1.0}, "trainer.check_val_every_n_epoch=2 "),
        ({"validating": 300.0}, {"val_check_interval": 1000}, "trainer.val_check_interval=4000 "),
    ],
)
def test_if_compute_is_slow_only_options_that_help_here_are_named(
    spent: dict[str, Any], setup: dict[str, Any], knob: str
) -> None:
    _, only = lines(spent, **setup)
    assert only.startswith(f"to speed up: {knob}")


def test_without_a_gpu_no_advice_needs_one() -> None:
    text = "\n".join(lines(gpu=False, memory_used=None, precision="32-true", pin_memory=False))
    assert "precision" not in text
    assert "pin_memory" not in text


def test_if_padding_costs_nothing_no_other_batches_are_advised() -> None:
    (verdict,) = lines({"padded_samples": 100 * 16000 * 30}, gpu=False)
    assert "padding efficiency 30%" in verdict


def test_validation_that_takes_most_of_the_run_is_the_verdict() -> None:
    assert "validation is the bottleneck" in lines({"validating": 300.0})[0]


def test_there_are_at_most_three_lines_of_advice() -> None:
    everything = lines(
        {"waiting": 100.0, "between": 30.0, "validating": 100.0, "padded_samples": 100 * 16000 * 30},
        exact=True,
        precision="32-true",
        memory_used=0.1,
        num_workers=0,
        log_every_n_steps=1,
    )
    assert len(everything) == 3
    assert "num_workers" in everything[1]
