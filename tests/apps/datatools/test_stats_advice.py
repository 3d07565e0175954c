"""Suggested limits and batches have the effects that are printed with them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.apps.datatools.stats_advice import (
    LONGEST,
    MOST_SAMPLED,
    advise,
    expected_longest,
    suggest_batches,
    suggest_max_duration,
    suggest_min_duration,
)
from nest_ssl.data.loader import build_dataloader
from nest_ssl.data.loading.buckets import DurationBatches

DURATIONS = st.lists(st.floats(0.05, 200.0), min_size=1, max_size=60).map(np.array)


def speech(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(1.0, 0.7, count).clip(0.3, 25).round(3)


@given(durations=st.lists(st.floats(0.1, 50), min_size=1, max_size=8), size=st.integers(1, 8))
def test_the_longest_of_a_random_batch_is_the_mean_over_all_batches(durations: list[float], size: int) -> None:
    size = min(size, len(durations))
    naive = np.mean([max(batch) for batch in itertools.combinations(durations, size)])
    assert expected_longest(np.array(durations), size) == pytest.approx(naive)


def test_padding_of_random_batches_is_that_of_shuffled_epochs() -> None:
    durations, size = speech(4000).clip(1), 8
    draw = np.random.default_rng(1)
    padded = [size * draw.permutation(durations).reshape(-1, size).max(axis=1).sum() for _ in range(30)]
    measured = durations.sum() / np.mean(padded)
    assert suggest_batches(durations, size).random_efficiency == pytest.approx(measured, rel=0.005)


@given(durations=DURATIONS)
def test_limits_drop_at_most_one_percent_of_the_hours_unless_clips_are_over_a_minute(durations: np.ndarray) -> None:
    longest, shortest = suggest_max_duration(durations), suggest_min_duration(durations)
    total = durations.sum()
    assert longest == LONGEST or durations[durations > longest].sum() <= 0.01 * total
    assert durations[durations > longest - 1].sum() >= 0.01 * total * (1 - 1e-9) or longest == LONGEST
    assert shortest == 0.1 or durations[durations < shortest].sum() <= 0.01 * total


@given(durations=DURATIONS, size=st.integers(1, 40))
def test_suggested_batches_can_be_made_and_their_buckets_hold_equal_seconds(durations: np.ndarray, size: int) -> None:
    found = suggest_batches(durations, size)
    lengths = np.maximum(durations, 1.0)
    sampler = DurationBatches(lengths, batch_duration=found.batch_duration, num_buckets=found.num_buckets)
    assert sampler.padding_efficiency() == found.efficiency
    assert 0 < found.random_efficiency <= 1 + 1e-9
    seconds = [lengths[bucket].sum() for bucket in sampler.buckets]
    assert max(seconds) <= lengths.sum() / found.num_buckets + lengths.max()


def test_batches_by_duration_have_less_padding_than_random_ones() -> None:
    found = suggest_batches(speech(5000).clip(1), 8)
    assert found.efficiency > 0.85 > 0.6 > found.random_efficiency


def test_a_sample_of_many_durations_gives_the_same_efficiency() -> None:
    few, many = suggest_batches(speech(MOST_SAMPLED), 8), suggest_batches(speech(3 * MOST_SAMPLED, seed=1), 8)
    assert many.efficiency == pytest.approx(few.efficiency, abs=0.01)


def test_the_longest_of_many_durations_fits_into_a_batch() -> None:
    durations = np.full(2 * MOST_SAMPLED, 2.0)
    durations[7] = 50.0
    assert suggest_batches(durations, 1).batch_duration == 50


@pytest.mark.parametrize(
    ("durations", "in_tar", "reason"),
    [
        ([2.0, np.nan, 3.0], False, "1 lines have no duration"),
        ([2.0, 3.0], True, "for tar files"),
        ([90.0, 80.0], False, "outside of the limits"),
    ],
)
def test_batches_that_the_loader_would_refuse_are_not_suggested(
    durations: list[float], in_tar: bool, reason: str
) -> None:
    advice = advise(np.array(durations), 8, in_tar=in_tar)
    assert advice is not None
    assert advice.batches is None
    assert reason in advice.reason
    assert not [override for override in advice.overrides if "batch" in override]
    assert bool(advice.overrides) == ("outside" not in reason)


def test_without_any_duration_there_is_no_advice() -> None:
    assert advise(np.array([np.nan, np.nan]), 8) is None


@pytest.fixture
def manifest(tmp_path: Path, write_manifest: Callable[..., str]) -> tuple[str, np.ndarray]:
    """A manifest whose lines are parts of one file, and their durations, which are distributed like those of speech."""
    durations = speech(150)
    sound = np.random.default_rng(0).integers(-3000, 3000, 26 * 16000).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", sound, 16000)
    rows = [{"audio_filepath": "a.wav", "offset": 0.0, "duration": length} for length in durations]
    return write_manifest(rows), durations


def test_the_loader_accepts_the_overrides_and_pads_as_predicted(manifest: tuple[str, np.ndarray]) -> None:
    path, durations = manifest
    advice = advise(durations, batch_size=8)
    assert advice is not None
    assert advice.batches is not None
    config: dict[str, Any] = {"manifest_filepath": path, "sample_rate": 16000}
    for override in advice.overrides:
        key, value = re.fullmatch(r"model\.train_ds\.(\w+)=([\w.]+)", override).groups()  # type: ignore[union-attr]
        config[key] = None if value == "null" else float(value) if "duration" in key else int(value)
    batches = list(build_dataloader(config, key="model.train_ds"))
    lengths = [batch.audio_len.numpy() for batch in batches]
    measured = sum(batch.sum() for batch in lengths) / sum(len(batch) * batch.max() for batch in lengths)
    assert measured == pytest.approx(advice.batches.efficiency, abs=0.01)
    dropped = advice.min_duration.lines_dropped + advice.max_duration.lines_dropped
    assert sum(map(len, lengths)) == advice.lines_kept == round(len(durations) * (1 - dropped)) < len(durations)
