from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nest_ssl.training.callbacks.samples import Sample, picture, take_samples, write_samples
from tests.model.fast.conftest import build, make_batch

RATE = 16000


def samples_of(numerics: str, *overrides: str) -> list[Sample]:
    batch = make_batch((17 * RATE, 3 * RATE, RATE))
    model = build(numerics, ["model.masking.mask_prob=0.02", *overrides]).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        prediction = model.predict_masked(batch)
        before = torch.get_rng_state()
        samples = take_samples(model, batch, prediction, RATE)
    assert torch.equal(torch.get_rng_state(), before)
    return samples


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_two_utterances_are_taken_and_cut_to_15_seconds(numerics: str) -> None:
    long, short = samples_of(numerics)
    assert len(long.clean) == len(long.noisy) == 15 * RATE
    assert len(short.clean) == 3 * RATE
    assert long.features.shape == (80, 1500)
    assert long.mask.shape == (1500,)
    assert long.targets.shape == long.predicted.shape == (188, 1)  # 8 feature frames each, rounded up
    assert long.scored.shape == (188,)
    assert 0 < short.scored.sum() < len(short.scored)
    assert (short.targets[short.scored] >= 0).all()


def test_scored_frames_are_within_masked_ones() -> None:
    for sample in samples_of("exact"):
        for frame in np.flatnonzero(sample.scored):
            assert sample.mask[8 * frame : 8 * frame + 8].mean() > 0.8


def test_masks_after_the_subsampling_are_shown_over_feature_frames() -> None:
    for sample in samples_of("exact", "model.mask_position=post_conv"):
        assert sample.mask.shape == (sample.features.shape[1],)
        frames = np.repeat(sample.scored, 8)[: len(sample.mask)]
        assert (sample.mask[: len(frames)] == frames).mean() > 0.95


def test_exact_and_fast_have_the_same_samples() -> None:
    for exact, fast in zip(samples_of("exact"), samples_of("fast"), strict=True):
        for name in ("clean", "noisy", "features", "mask", "scored"):
            np.testing.assert_array_equal(getattr(exact, name), getattr(fast, name))
        np.testing.assert_array_equal(exact.targets[exact.scored], fast.targets[fast.scored])
        assert (fast.targets[~fast.scored] == -1).all()


def test_the_first_file_and_the_newest_three_are_kept(tmp_path: Path) -> None:
    samples = samples_of("exact")
    for step in (10, 20, 30, 40, 50, 60):
        write_samples(tmp_path, samples, RATE, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:09d}.npz" for step in (10, 40, 50, 60)]
    with np.load(tmp_path / "step-000000060.npz") as file:
        assert file["sample_rate"] == RATE
        assert file["step"] == 60
        np.testing.assert_array_equal(file["targets_1"], samples[1].targets)
        assert file["clean_0"].dtype == file["features_0"].dtype == np.float16


def test_files_with_other_names_are_not_removed(tmp_path: Path) -> None:
    for name in ("step-a.npz", "step-b.npz", "step-c.npz", "step-d.npz", "step-1.npz"):
        (tmp_path / name).write_bytes(b"mine")
    write_samples(tmp_path, samples_of("exact"), RATE, 10)
    assert len(list(tmp_path.iterdir())) == 6


def test_a_picture_is_grey_where_frames_are_masked() -> None:
    for sample in samples_of("exact", "model.num_books=2"):
        pixels = picture(sample, RATE)
        frames = sample.features.shape[1]
        scale = max(1, round(900 / frames))
        row = pixels[60, 84 : 84 + frames * scale : scale]  # a row of the spectrogram
        grey = row.max(axis=1) == row.min(axis=1)
        np.testing.assert_array_equal(grey, sample.mask)


def test_a_picture_of_fully_masked_silence_can_be_drawn() -> None:
    silent = Sample(
        clean=np.zeros(1600, np.float16),
        noisy=np.zeros(1600, np.float16),
        features=np.full((80, 11), np.nan, np.float16),
        mask=np.ones(11, np.bool_),
        targets=np.full((2, 1), -1, np.int32),
        predicted=np.full((2, 1), -1, np.int32),
        scored=np.zeros(2, np.bool_),
    )
    assert picture(silent, RATE).shape[2] == 3
