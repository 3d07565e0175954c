"""Mixing a batch with noise and with its own other speakers, the denoising half of NEST (arXiv:2408.13106).

All random numbers come from Python's global `random`, in NeMo's order. As in NeMo, an utterance that is not augmented
is mixed with its sampled noise at full level.
"""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nest_ssl.data.batch import AudioNoiseBatch

_TWISTER = np.random.RandomState(0)  # gets the state of Python's generator; making a new one costs more than the draws


@dataclass(eq=False)
class SpeakerNoiseAugmentation:
    """Add one segment of its noise, or of another utterance of the batch, to an utterance, at a random energy ratio.

    `prob` is the share of augmented utterances, `noise_ratio` the share of those that get noise instead of a speaker.
    Ratios `r` are in dB, the utterance over the added segment; mix rates are the segment's share of the utterance.
    """

    prob: float = 0.0
    noise_ratio: float = 0.0
    min_r_speech: float = -5.0
    max_r_speech: float = 5.0
    min_r_noise: float = -5.0
    max_r_noise: float = 20.0
    min_mix_rate: float = 0.0
    max_mix_rate: float = 1.0

    def __post_init__(self) -> None:
        _check_range("prob", self.prob, self.prob, least=0, most=1)
        _check_range("noise_ratio", self.noise_ratio, self.noise_ratio, least=0, most=1)
        _check_range("r_speech", self.min_r_speech, self.max_r_speech)
        _check_range("r_noise", self.min_r_noise, self.max_r_noise)
        _check_range("mix_rate", self.min_mix_rate, self.max_mix_rate, least=0, most=1)

    def __call__(self, batch: AudioNoiseBatch) -> AudioNoiseBatch:
        """Fill `noisy_audio`; `noise` becomes the added signal, and `noise_len` the length of the noisy audio."""
        for index in range(len(batch.audio)):
            if random.random() <= self.prob:
                audio_len = int(batch.audio_len[index])
                batch.noise[index, :audio_len] = self.mixture(batch, index)
                batch.noise[index, audio_len:] = 0
                batch.noise_len[index] = audio_len
        noisy_audio = torch.add(batch.audio, batch.noise, out=batch.noisy_audio)
        return dataclasses.replace(batch, noisy_audio=noisy_audio, noisy_audio_len=batch.noise_len)

    def mixture(self, batch: AudioNoiseBatch, index: int) -> Tensor:
        """Return the signal to add to one utterance, of its length (S)."""
        audio_len = int(batch.audio_len[index])
        mix_len = self.draw_mix_len(batch.audio_len[index])
        mix_start = random.randint(0, audio_len - mix_len - 1) if audio_len > mix_len else 0
        mode, energy_ratio = self.draw_mode(len(batch.audio))
        source, source_len = batch.noise[index], int(batch.noise_len[index])
        if mode == "speech":
            other = random.choice([speaker for speaker in range(len(batch.audio)) if speaker != index])
            source, source_len = batch.audio[other], int(batch.audio_len[other])
        if source_len <= mix_len:
            source, start = _repeated(source[:source_len], mix_len), 0
        else:
            source, start = source[:source_len], random.randint(0, source_len - mix_len - 1)
        scale = _mix_scale(batch.audio[index, :audio_len], source, energy_ratio)
        added = torch.zeros(audio_len)
        added[mix_start : mix_start + mix_len] = scale * source[start : start + mix_len]
        return added

    def draw_mix_len(self, audio_len: Tensor) -> int:
        """Draw how many samples to mix; `audio_len` is a tensor, because NeMo rounds its product to float32."""
        if self.min_mix_rate == self.max_mix_rate:
            return max(1, int(audio_len * self.min_mix_rate))
        shortest, longest = int(audio_len * self.min_mix_rate), int(audio_len * self.max_mix_rate) - 1
        return random.randint(shortest, max(shortest, longest))

    def draw_mode(self, batch_size: int) -> tuple[str, float]:
        """Draw `noise` or `speech` and the energy ratio in dB; a batch of one utterance always gets noise."""
        if random.random() < self.noise_ratio or batch_size == 1:
            return "noise", random.uniform(self.min_r_noise, self.max_r_noise)
        return "speech", random.uniform(self.min_r_speech, self.max_r_speech)


@dataclass(eq=False)
class MultiSpeakerNoiseAugmentation(SpeakerNoiseAugmentation):
    """Like `SpeakerNoiseAugmentation`, with several segments from several other speakers of the batch."""

    min_num_segments: int = 1
    max_num_segments: int = 5
    min_num_speakers: int = 1
    max_num_speakers: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range("num_segments", self.min_num_segments, self.max_num_segments, least=1)
        _check_range("num_speakers", self.min_num_speakers, self.max_num_speakers, least=1)

    def mixture(self, batch: AudioNoiseBatch, index: int) -> Tensor:
        """Return the signal to add to one utterance, of its length (S)."""
        audio_len = int(batch.audio_len[index])
        mix_len = self.draw_mix_len(batch.audio_len[index])
        num_segments = random.randint(self.min_num_segments, self.max_num_segments)
        num_speakers = random.randint(self.min_num_speakers, self.max_num_speakers)
        segment_lens = draw_segment_lens(num_segments, mix_len)
        mode, energy_ratio = self.draw_mode(len(batch.audio))
        if mode == "noise":
            noise = batch.noise[index, : batch.noise_len[index]]
            segments = list(_repeated(noise, mix_len).split(segment_lens))
        else:
            segments = _draw_speech_segments(batch, index, segment_lens, num_speakers)

        added = torch.zeros(audio_len)
        first_start, last_start = 0, audio_len - mix_len  # a segment starts in this range, so that the others fit
        for segment in segments:
            start = random.randint(first_start, last_start - 1) if first_start < last_start else first_start
            added[start : start + len(segment)] = segment
            first_start = start + len(segment)
            last_start += len(segment)
        return added.mul_(_mix_scale(batch.audio[index, :audio_len], added, energy_ratio))

    def draw_mix_len(self, audio_len: Tensor) -> int:
        """Draw how many samples to mix, at least one; this class draws the rate, not the length."""
        mix_rate = self.min_mix_rate
        if self.min_mix_rate < self.max_mix_rate:
            mix_rate = random.uniform(self.min_mix_rate, self.max_mix_rate)
        return max(1, int(audio_len * mix_rate))


def draw_segment_lens(num_segments: int, total: int) -> list[int]:
    """Assign `total` samples to random segments; return the segment lengths, ordered by first assigned sample.

    This equals counting `random.choices(range(num_segments), k=total)`, with the same random numbers, but drawn in C:
    Python's generator and NumPy's are the same Mersenne Twister. A segment without samples is absent.
    """
    version, (*words, position), gauss_next = random.getstate()
    _TWISTER.set_state(("MT19937", np.array(words, dtype=np.uint32), position, 0, 0.0))
    drawn = _TWISTER.random_sample(total)
    state = _TWISTER.get_state(legacy=False)["state"]
    random.setstate((version, (*state["key"].tolist(), state["pos"]), gauss_next))
    if num_segments == 1:  # the usual configuration: one segment gets all samples
        return [total]

    assigned = (drawn * num_segments).astype(np.intp)
    lengths = np.bincount(assigned).tolist()
    present = [segment for segment, length in enumerate(lengths) if length]
    return [lengths[segment] for segment in sorted(present, key=lambda segment: np.argmax(assigned == segment))]


def _draw_speech_segments(
    batch: AudioNoiseBatch, index: int, segment_lens: list[int], num_speakers: int
) -> list[Tensor]:
    """Return a random part of another speaker for each segment: each drawn speaker once, then a random one."""
    others = [speaker for speaker in range(len(batch.audio)) if speaker != index]
    speakers = random.sample(others, k=min(num_speakers, len(others)))
    segments = []
    turn = 0
    for segment_len in segment_lens:
        speech = batch.audio[speakers[turn], : batch.audio_len[speakers[turn]]]
        if segment_len < len(speech):
            start = random.randint(0, len(speech) - segment_len - 1)
            segments.append(speech[start : start + segment_len])
        else:
            segments.append(_repeated(speech, segment_len))
        turn += 1
        if turn >= len(speakers):
            turn = random.randint(0, len(speakers) - 1)
    return segments


def _repeated(signal: Tensor, length: int) -> Tensor:
    """Repeat a signal up to a length; an empty signal gives silence."""
    if len(signal) == 0:
        return signal.new_zeros(length)
    return signal.repeat(math.ceil(length / len(signal)))[:length]


def _mix_scale(audio: Tensor, added: Tensor, energy_ratio: float) -> float:
    """Return the factor for `added` that puts its mean energy `energy_ratio` dB below that of the audio."""
    if len(added) == 0:
        return 0.0
    audio_energy = torch.sum(audio**2) / len(audio)
    added_energy = torch.sum(added**2) / len(added)
    return math.sqrt(audio_energy / (10 ** (energy_ratio / 10) * added_energy)) if added_energy > 0 else 0.0


def _check_range(name: str, low: float, high: float, least: float = -math.inf, most: float = math.inf) -> None:
    if not least <= low <= high <= most:
        found = f"{name} is {low}" if low == high else f"min_{name} is {low} and max_{name} {high}"
        raise ValueError(f"{found}; expected {least:g} <= min <= max <= {most:g}")
