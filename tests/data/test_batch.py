from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch
from lightning.fabric.utilities import move_data_to_device

from nest_ssl.data import AudioNoiseBatch, AudioNoiseItem
from nest_ssl.data.batch import collate_audio_noise
from nest_ssl.data.problems import Problem

SKIPPED, USED = (Problem("any", "a.wav", "m.json:1", "a.wav: bad", outcome) for outcome in ("skipped", "used"))


def item(audio_len: int, noise_len: int, *problems: Problem) -> AudioNoiseItem:
    return AudioNoiseItem(
        sample_id=f"{audio_len}",
        audio=torch.full((audio_len,), 1.0),
        audio_len=torch.tensor(audio_len),
        noise=torch.full((noise_len,), 0.5),
        noise_len=torch.tensor(noise_len),
        problems=problems,
    )


def test_audio_is_padded_to_the_longest_and_noise_cut_to_it() -> None:
    batch = collate_audio_noise([item(3, 9), item(5, 2, SKIPPED, USED, SKIPPED)], None)
    assert batch.audio.tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert batch.noise.tolist() == [[0.5] * 5, [0.5, 0.5, 0, 0, 0]]
    assert batch.noisy_audio.tolist() == [[1.5, 1.5, 1.5, 0.5, 0.5], [1.5, 1.5, 1, 1, 1]]
    assert batch.audio_len.tolist() == batch.noisy_audio_len.tolist() == [3, 5]
    assert batch.noise_len.tolist() == [9, 2]
    assert batch.audio_len.dtype == batch.noise_len.dtype == torch.int64
    assert batch.sample_id == ["3", "5"]


def test_problems_are_kept_and_skipped_files_counted() -> None:
    batch = collate_audio_noise([item(3, 9, USED), item(3, 3), item(5, 2, SKIPPED, SKIPPED)], None)
    assert batch.problems == (USED, SKIPPED, SKIPPED)
    assert batch.skipped == 2
    moved = move_data_to_device(pickle.loads(pickle.dumps(batch)), torch.device("cpu"))
    assert moved.problems == batch.problems


def test_an_augmentor_does_the_mixing() -> None:
    def augmentor(batch: AudioNoiseBatch) -> AudioNoiseBatch:
        return dataclasses.replace(batch, noisy_audio=-batch.audio, noisy_audio_len=batch.noise_len)

    batch = collate_audio_noise([item(3, 3)], augmentor)
    assert batch.noisy_audio.tolist() == [[-1, -1, -1]]


def test_every_tensor_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    before = collate_audio_noise([item(3, 9, SKIPPED)], None)
    after = dataclasses.replace(before).pin_memory()
    for field in dataclasses.fields(AudioNoiseBatch):
        old, new = getattr(before, field.name), getattr(after, field.name)
        assert torch.equal(new, old + 1) if isinstance(old, torch.Tensor) else new == old
