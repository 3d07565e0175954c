from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.data import AudioNoiseBatch, MultiSpeakerNoiseAugmentation, SpeakerNoiseAugmentation
from nest_ssl.data.augmentation import draw_segment_lens

BOTH = pytest.mark.parametrize("augmentation", [SpeakerNoiseAugmentation, MultiSpeakerNoiseAugmentation])


def make_batch(lengths: list[int], noise_lens: list[int] | None = None, seed: int = 0) -> AudioNoiseBatch:
    """Return a batch: speech of utterance i has the level i + 1 with random signs, noise has 100 times that level."""
    generator = torch.Generator().manual_seed(seed)
    noise_lens = lengths if noise_lens is None else noise_lens
    signs = torch.randint(0, 2, (len(lengths), max(lengths)), generator=generator) * 2.0 - 1.0
    position = torch.arange(max(lengths))
    audio = signs * torch.arange(1, len(lengths) + 1)[:, None]
    return AudioNoiseBatch(
        audio=audio * (position < torch.tensor(lengths)[:, None]),
        audio_len=torch.tensor(lengths),
        noise=100 * audio * (position < torch.tensor(noise_lens)[:, None]),
        noise_len=torch.tensor(noise_lens),
    )


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 3000), st.integers(0, 700))
def test_segment_lengths_equal_choices_of_pythons_generator(seed: int, count: int, total: int, used: int) -> None:
    random.seed(seed)
    for _ in range(used):  # any position within the generator's block of 624 words
        random.random()
    random.gauss(0, 1)
    state = random.getstate()
    expected = list(Counter(random.choices(range(count), k=total)).values())
    after = [random.gauss(0, 1), random.random(), random.randint(0, 10**6)]
    random.setstate(state)
    assert draw_segment_lens(count, total) == expected
    assert [random.gauss(0, 1), random.random(), random.randint(0, 10**6)] == after


@BOTH
def test_utterances_without_mixing_keep_their_noise(augmentation: type[SpeakerNoiseAugmentation]) -> None:
    batch = make_batch([50, 40, 30], [20, 40, 10])
    before = batch.noise.clone()
    mixed = augmentation(prob=0.0)(batch)
    assert torch.equal(mixed.noise, before)
    assert torch.equal(mixed.noisy_audio, batch.audio + before)
    assert mixed.noisy_audio_len.tolist() == [20, 40, 10]


@BOTH
@pytest.mark.parametrize("noise_ratio", [0.0, 1.0])
def test_noisy_audio_is_audio_plus_added_segments_within_the_utterance(
    augmentation: type[SpeakerNoiseAugmentation], noise_ratio: float
) -> None:
    for seed in range(10):
        random.seed(seed)
        batch = make_batch([500, 400, 70], [500, 10, 70], seed)
        audio = batch.audio.clone()
        mixed = augmentation(prob=1.0, noise_ratio=noise_ratio, min_mix_rate=0.1, max_mix_rate=0.9)(batch)
        assert torch.equal(mixed.audio, audio)
        assert torch.equal(mixed.noisy_audio, audio + mixed.noise)
        assert mixed.noisy_audio_len.tolist() == mixed.noise_len.tolist() == [500, 400, 70]
        assert all(not row[length:].any() for row, length in zip(mixed.noise, [500, 400, 70], strict=True))


@pytest.mark.parametrize("ratio", [-5.0, 0.0, 12.0])
@pytest.mark.parametrize("noise_ratio", [0.0, 1.0])
def test_several_segments_together_have_the_energy_ratio(ratio: float, noise_ratio: float) -> None:
    random.seed(1)
    bounds = {f"{end}_r_{kind}": ratio for end in ("min", "max") for kind in ("speech", "noise")}
    mixed = MultiSpeakerNoiseAugmentation(prob=1.0, noise_ratio=noise_ratio, **bounds)(make_batch([4000, 3000, 2000]))
    energies = (mixed.audio**2).sum(dim=1) / (mixed.noise**2).sum(dim=1)
    assert (10 * energies.log10()).tolist() == pytest.approx([ratio] * 3, abs=1e-3)


@pytest.mark.parametrize("rate", [0.25, 0.5, 1.0])
def test_the_rate_decides_how_much_is_mixed(rate: float) -> None:
    for augmentation in (SpeakerNoiseAugmentation, MultiSpeakerNoiseAugmentation):
        for seed in range(10):
            random.seed(seed)
            mixed = augmentation(prob=1.0, min_mix_rate=rate, max_mix_rate=rate)(make_batch([400, 200], seed=seed))
            assert [int(row.count_nonzero()) for row in mixed.noise] == [int(400 * rate), int(200 * rate)]


def test_speech_is_taken_from_other_speakers_and_noise_from_the_own_utterance() -> None:
    """The level of a speaker shows whose samples were added; all segments have the same scale."""
    for seed in range(20):
        random.seed(seed)
        batch = make_batch([600, 600, 600, 600], seed=seed)
        augmentation = MultiSpeakerNoiseAugmentation(
            prob=1.0, noise_ratio=0.0, min_num_segments=3, max_num_segments=3, min_num_speakers=3, max_num_speakers=3,
            min_mix_rate=0.5, max_mix_rate=0.5,
        )  # fmt: skip
        mixed = augmentation(batch)
        for speaker, row in enumerate(mixed.noise, start=1):
            levels = row[row != 0].abs().unique()
            others = torch.tensor([float(other) for other in range(1, 5) if other != speaker])
            torch.testing.assert_close(levels / levels[0], others / others[0])


@BOTH
def test_a_single_utterance_is_mixed_with_noise(augmentation: type[SpeakerNoiseAugmentation]) -> None:
    random.seed(0)
    mixed = augmentation(prob=1.0, noise_ratio=0.0, min_mix_rate=0.5, max_mix_rate=0.5)(make_batch([100]))
    assert mixed.noise.count_nonzero() == 50


@BOTH
def test_empty_noise_is_silence(augmentation: type[SpeakerNoiseAugmentation]) -> None:
    """NeMo divides by zero."""
    random.seed(0)
    mixed = augmentation(prob=1.0, noise_ratio=1.0, min_mix_rate=0.5, max_mix_rate=0.5)(make_batch([100], [0]))
    assert torch.equal(mixed.noisy_audio, mixed.audio)


def test_segments_without_a_sample_are_skipped() -> None:
    """NeMo fails with an IndexError."""
    random.seed(0)
    augmentation = MultiSpeakerNoiseAugmentation(
        prob=1.0, noise_ratio=1.0, min_mix_rate=0.02, max_mix_rate=0.02, min_num_segments=5, max_num_segments=5
    )
    assert augmentation(make_batch([100])).noise.count_nonzero() == 2


def test_a_whole_utterance_may_be_mixed() -> None:
    """NeMo fails with an empty range."""
    random.seed(0)
    mixed = SpeakerNoiseAugmentation(prob=1.0, min_mix_rate=1.0, max_mix_rate=1.0)(make_batch([100, 80]))
    assert [int(row.count_nonzero()) for row in mixed.noise] == [100, 80]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"prob": 1.5}, "prob is 1.5"),
        ({"noise_ratio": -0.1}, "noise_ratio is -0.1"),
        ({"min_r_speech": 6.0}, "min_r_speech is 6.0 and max_r_speech 5.0"),
        ({"min_r_noise": 30.0}, "min_r_noise"),
        ({"max_mix_rate": 1.1}, "max_mix_rate 1.1"),
        ({"min_num_segments": 0}, "min_num_segments is 0"),
        ({"max_num_speakers": 0}, "max_num_speakers 0"),
    ],
)
def test_values_out_of_range_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        MultiSpeakerNoiseAugmentation(**arguments)
