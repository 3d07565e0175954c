from __future__ import annotations

import time

import pytest
import torch

from benchmarks import measure
from benchmarks.ablation import PADDING, PARTS, _as_long_as_the_longest
from benchmarks.plan import Measurement
from tests.benchmarks.conftest import MakeJob
from tests.model.fast.conftest import NOTHING_RANDOM, build, make_batch

LENGTHS = (16000, 30000, 48000)  # samples
FEWER_FRAMES = ("tokens, decoder and loss for masked frames only", PADDING)


@pytest.mark.parametrize("part", [part for part in PARTS if part not in FEWER_FRAMES])
def test_the_loss_is_the_same_without_a_part(part: str) -> None:
    model, batch = build("fast", NOTHING_RANDOM), make_batch(LENGTHS)
    torch.manual_seed(0)
    expected = model.predict_masked(batch).loss
    torch.manual_seed(0)
    with PARTS[part]():
        loss = model.predict_masked(batch).loss
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)


def test_padding_can_be_counted_as_audio() -> None:
    batch = _as_long_as_the_longest(make_batch(LENGTHS))
    assert batch.audio_len.unique().tolist() == [batch.audio.shape[1]]


def test_every_part_is_timed(make_job: MakeJob) -> None:
    job = make_job(Measurement("test", "seconds", 4.0, kind="ablation", steps=1))
    numbers = measure.ablation("nest_ssl", job, time.time())
    assert list(numbers["without"]) == list(PARTS)
    assert min(numbers["seconds"], *numbers["without"].values()) > 0
