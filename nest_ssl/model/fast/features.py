"""Log-mel features of the valid frames only, as in model/mel.py, with utterances end to end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nest_ssl.model.fast.packing import Packing
from nest_ssl.model.mel import STD_GUARD, AudioToMelSpectrogramPreprocessor


@torch.no_grad()
def packed_features(
    preprocessor: AudioToMelSpectrogramPreprocessor, signal: Tensor, samples: list[int], packing: Packing
) -> Tensor:
    """Compute features (N, D) from waveforms (B, S) with these lengths, one row for each frame of `packing`."""
    bank = preprocessor.featurizer.fb[0]  # (D, bins)
    if not any(packing.lengths):
        return bank.new_empty(0, len(bank))
    utterances = [row[:count].to(torch.float32) for row, count in zip(signal, samples, strict=True)]
    with torch.autocast(signal.device.type, enabled=False):
        frames = [_frames(preprocessor, x, count) for x, count in zip(utterances, packing.lengths, strict=True)]
        spectrum = torch.fft.rfft(torch.cat(frames), n=preprocessor.n_fft)  # (N, bins)
        power = spectrum.real.square().addcmul_(spectrum.imag, spectrum.imag)
        if preprocessor.mag_power != 2.0:
            power = power.pow_(preprocessor.mag_power / 2)
        x = power @ bank.t()  # (N, bins) -> (N, D)
        if preprocessor.log:
            guard = preprocessor.log_zero_guard_value
            x = (x.add_(guard) if preprocessor.log_zero_guard_type == "add" else x.clamp_(min=guard)).log_()
        return torch.cat([_normalised(part, preprocessor) for part in x.split(packing.lengths)])


def _frames(preprocessor: AudioToMelSpectrogramPreprocessor, x: Tensor, count: int) -> Tensor:
    """Cut one utterance (S) into windowed frames (count, window)."""
    width, hop = preprocessor.win_length, preprocessor.hop_length
    if count == 0:
        return x.new_empty(0, width)
    before = preprocessor.n_fft // 2 - (preprocessor.n_fft - width) // 2  # the first frame is centred on sample 0
    needed = (count - 1) * hop + width - before
    x = x[:needed]
    if preprocessor.training and preprocessor.dither > 0:
        x = torch.randn_like(x).mul_(preprocessor.dither).add_(x)
    if preprocessor.preemph is not None:
        x = torch.cat((x[:1], x[1:] - preprocessor.preemph * x[:-1]))
    x = nn.functional.pad(x, (before, needed - len(x)))
    window = preprocessor.featurizer.window
    assert window is not None  # packable
    return x.unfold(0, width, hop) * window


def _normalised(x: Tensor, preprocessor: AudioToMelSpectrogramPreprocessor) -> Tensor:
    """Normalise each feature of one utterance (T, D) to zero mean and unit deviation."""
    if preprocessor.normalize is None or len(x) == 0:
        return x
    deviation, mean = torch.std_mean(x, dim=0)
    return (x - mean) / (deviation.nan_to_num_(nan=0.0) + STD_GUARD)  # one frame has no deviation
