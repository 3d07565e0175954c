"""The measurements of a side, with the real model in a very small size."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import measure
from benchmarks.flops import FORWARD_AND_BACKWARD, FRAMES_PER_SECOND, training_flops
from benchmarks.job import BACKWARD, ENCODER, REST, STAGES
from benchmarks.plan import EXACT, FAST, FAST_BF16, Measurement, Side
from benchmarks.run import CONFIG
from benchmarks.stages import StageClock
from nest_ssl.compat import cpu_multiplies_bf16
from nest_ssl.data import AudioNoiseBatch
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config
from tests.benchmarks.conftest import MakeJob

BF16_ONLY = pytest.mark.skipif(not cpu_multiplies_bf16(), reason="without its instructions, a large product takes long")


@pytest.mark.parametrize("side", [EXACT, FAST, pytest.param(FAST_BF16, marks=BF16_ONLY)], ids=lambda side: side.name)
def test_training_counts_audio_without_padding_and_shares_of_the_time(side: Side, make_job: MakeJob) -> None:
    measurement = Measurement("test", "rate", (1.0, 3.0, 2.0, 2.0), steps=2, stages=True, matrix_peak=True)
    job = make_job(measurement, side)
    numbers = measure.train("nest_ssl", job, time.time())
    steps = numbers["steps"]
    assert [step["real"] for step in steps] == pytest.approx([4.0, 4.0])
    assert [step["padded"] for step in steps] == pytest.approx([6.0, 4.0])
    seconds = sum(step["seconds"] + step["waited"] for step in steps)
    assert numbers["rate"] == pytest.approx(8.0 / seconds)
    assert 0 < numbers["peak_share"] < 1
    assert set(numbers["stages"]) == set(STAGES)
    assert sum(numbers["stages"].values()) == pytest.approx(seconds / 2, rel=0.05)
    assert all(numbers["stages"][stage] > 0 for stage in STAGES)
    assert numbers["stages"][BACKWARD] + numbers["stages"][ENCODER] > 0.2 * seconds / 2


def test_both_numerics_are_timed_on_the_same_batches(make_job: MakeJob) -> None:
    measurement = Measurement("test", "rate", 4.0, steps=2)
    exact, fast = (measure.train("nest_ssl", make_job(measurement, side), time.time()) for side in (EXACT, FAST))
    assert [step["real"] for step in exact["steps"]] == [step["real"] for step in fast["steps"]]


def test_a_run_ends_before_its_first_step_if_only_the_start_is_measured(make_job: MakeJob) -> None:
    job = make_job(Measurement("test", "first_step_seconds", 4.0, kind="first_step"))
    numbers = measure.first_step("nest_ssl", job, time.time() - 100)
    assert 100 < numbers["first_step_seconds"] < 130


def test_loading_is_measured_in_items(make_job: MakeJob) -> None:
    job = make_job(Measurement("test", "items_per_second", 4.0, kind="data", steps=1))
    assert measure.data("nest_ssl", job, time.time())["items_per_second"] > 0


def test_saving_writes_all_three_files_and_is_timed(make_job: MakeJob) -> None:
    job = make_job(Measurement("test", "saving_seconds", (2.0,) * 4, kind="save", steps=2))
    assert measure.save("nest_ssl", job, time.time())["saving_seconds"] > 0


def test_the_counted_operations_equal_the_count_of_torch() -> None:
    """Compare the forward pass only, because torch ignores the groups in the gradient of a depthwise convolution."""
    overrides = ["model.numerics=fast", "model.encoder.d_model=128", "model.num_classes=512"]
    overrides += ["model.encoder.subsampling_conv_channels=64", "model.masking.mask_prob=0.02"]
    cfg = small_config(CONFIG, overrides)
    torch.manual_seed(0)
    model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model).train()
    clips, seconds = 4, 8.0
    audio, lengths = 0.1 * torch.randn(clips, int(seconds * 16000)), torch.full((clips,), int(seconds * 16000))
    signals = {"audio": audio, "noise": audio, "noisy_audio": audio.clone()}
    with FlopCounterMode(display=False) as counter:
        model.predict_masked(AudioNoiseBatch(**signals, audio_len=lengths, noise_len=lengths, noisy_audio_len=lengths))
    mel = 2 * 2 * clips * seconds * FRAMES_PER_SECOND * 257 * 80  # features of both signals: not counted
    settings: dict[str, Any] = OmegaConf.to_container(cfg.model, resolve=True)  # type: ignore[assignment]
    counted = training_flops(settings, [seconds] * clips) / FORWARD_AND_BACKWARD
    assert counted == pytest.approx(counter.get_total_flops() - mel, rel=0.03)


def test_a_stage_inside_another_stops_its_clock() -> None:
    moments = iter((0.0, 1.0, 3.0, 7.0, 15.0))
    clock = StageClock(lambda: next(moments))
    clock.enter("outer")
    clock.enter("inner")
    clock.leave("inner")
    clock.leave("outer")
    assert clock.seconds == {REST: 1.0, "outer": 2.0 + 8.0, "inner": 4.0}
