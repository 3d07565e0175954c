"""Log-mel features: NeMo's operations in NeMo's order, because tokens and losses depend on the last bit.

Kept on purpose: a symmetric (non-periodic) window, zero padding at the edges, pre-emphasis before the tail is
silenced, `log(x + 2**-24)`, and normalisation by the unbiased deviation plus 1e-5 (docs/numerics.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nest_ssl.model.filterbank import mel_filters

STD_GUARD = 1e-5
_WINDOWS = {
    "hann": torch.hann_window,
    "hamming": torch.hamming_window,
    "blackman": torch.blackman_window,
    "bartlett": torch.bartlett_window,
    "none": None,
}
Normalisation = Literal["per_feature", "all_features"] | Mapping[str, Any] | str | None


class AudioToMelSpectrogramPreprocessor(nn.Module):
    """Waveforms (B, S) to normalised log-mel features (B, D, T), without gradients.

    `use_torchaudio`, `stft_exact_pad`, `stft_conv` and `rng` are accepted and ignored: archives of older NeMo
    versions contain them.
    """

    def __init__(
        self,
        sample_rate: int = 16000,
        window_size: float | None = 0.02,  # seconds
        window_stride: float | None = 0.01,  # seconds
        n_window_size: int | None = None,  # samples, instead of window_size
        n_window_stride: int | None = None,
        window: str = "hann",
        normalize: Normalisation = "per_feature",
        n_fft: int | None = None,
        preemph: float | None = 0.97,
        features: int = 64,
        lowfreq: float = 0,
        highfreq: float | None = None,
        log: bool = True,
        log_zero_guard_type: Literal["add", "clamp"] = "add",
        log_zero_guard_value: float | Literal["tiny", "eps"] = 2**-24,
        dither: float = 1e-5,
        pad_to: int = 16,
        frame_splicing: int = 1,
        exact_pad: bool = False,
        pad_value: float = 0,
        mag_power: float = 2.0,
        rng: None = None,
        nb_augmentation_prob: float = 0.0,
        nb_max_freq: int = 4000,
        mel_norm: Literal["slaney"] | None = "slaney",
        use_torchaudio: bool = False,
        stft_exact_pad: bool = False,
        stft_conv: bool = False,
    ) -> None:
        super().__init__()
        if window not in _WINDOWS:
            raise ValueError(f"window is {window!r}; expected one of {', '.join(_WINDOWS)}")
        if log_zero_guard_type not in ("add", "clamp"):
            raise ValueError(f"log_zero_guard_type is {log_zero_guard_type!r}; expected 'add' or 'clamp'")
        if mel_norm not in ("slaney", None):
            raise ValueError(f"mel_norm is {mel_norm!r}; expected 'slaney' or null")
        if not isinstance(pad_to, int) or pad_to < 0:
            raise ValueError(f"pad_to is {pad_to!r}; expected a number of frames, 0 for none")
        self.win_length = _samples(window_size, n_window_size, sample_rate, "window_size")
        self.hop_length = _samples(window_stride, n_window_stride, sample_rate, "window_stride")
        if exact_pad and self.hop_length % 2:
            raise ValueError(f"exact_pad needs an even window_stride in samples, not {self.hop_length}")
        self.n_fft = n_fft or 2 ** math.ceil(math.log2(self.win_length))
        self.edge_padding = (self.n_fft - self.hop_length) // 2 if exact_pad else None
        self.normalize = _checked_normalisation(normalize)
        self.preemph = preemph
        self.log = log
        self.log_zero_guard_type = log_zero_guard_type
        self.log_zero_guard_value = _guard_value(log_zero_guard_value)
        self.dither = dither
        self.pad_to = pad_to
        self.pad_value = pad_value
        self.frame_splicing = frame_splicing
        self.mag_power = mag_power
        self.narrowband_probability = nb_augmentation_prob if nb_max_freq < sample_rate / 2 else 0.0
        self.narrowband_bin = int(nb_max_freq / sample_rate * self.n_fft)
        make_window = _WINDOWS[window]
        self.featurizer = Tables(
            window=make_window(self.win_length, periodic=False) if make_window else None,
            filters=mel_filters(
                sample_rate, self.n_fft, features, lowfreq, highfreq or sample_rate / 2, mel_norm == "slaney"
            ),
        )

    @torch.no_grad()
    def forward(self, input_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) samples and their lengths to (B, D, T) and the valid frames; in float32 whatever the precision."""
        with torch.autocast(input_signal.device.type, enabled=False):
            x, frames = self.features(input_signal.to(torch.float32), length)
        return x.to(self.featurizer.fb.dtype), frames

    def features(self, x: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.frames(length)
        x = self.power_spectrum(self.emphasised(x, length))
        x = torch.matmul(self.featurizer.fb.to(x.dtype), x)  # (B, bins, T) -> (B, D, T)
        if self.log:
            guard = self.log_zero_guard_value
            x = torch.log(x + guard if self.log_zero_guard_type == "add" else torch.clamp(x, min=guard))
        if self.frame_splicing > 1:
            # NeMo's splicing repeats the frame itself rather than its neighbours; kept.
            x = torch.cat([x] * self.frame_splicing, dim=1)
        if self.normalize is not None:
            x = normalise(x, frames, self.normalize)
        padding = torch.arange(x.size(-1), device=x.device) >= frames.unsqueeze(1)  # (B, T)
        x = x.masked_fill(padding.unsqueeze(1), self.pad_value)
        if self.pad_to and x.size(-1) % self.pad_to:
            x = nn.functional.pad(x, (0, self.pad_to - x.size(-1) % self.pad_to), value=self.pad_value)
        return x, frames

    @property
    def packable(self) -> bool:
        """Whether each frame depends only on its own samples and on no random numbers except dither."""
        plain = self.edge_padding is None and self.frame_splicing == 1 and self.narrowband_probability == 0
        return plain and self.featurizer.window is not None and self.normalize in (None, "per_feature")

    def padded_frames(self, samples: int) -> int:
        """Return the frames of a batch of so many samples, padding included."""
        frames = samples // self.hop_length + 1
        return frames + -frames % self.pad_to if self.pad_to else frames

    def frames(self, length: Tensor) -> Tensor:
        """Return the valid frames for these lengths: one less than the centred transform gives, as in NeMo; 0 for 0."""
        padded = 2 * self.edge_padding if self.edge_padding is not None else self.n_fft // 2 * 2
        frames = torch.div(length + padded - self.n_fft, self.hop_length, rounding_mode="floor").to(torch.long)
        return torch.where(length == 0, torch.zeros_like(length), frames)

    def emphasised(self, x: Tensor, length: Tensor) -> Tensor:
        """Dither (in training), pre-emphasis, and silence after each utterance's end."""
        if self.edge_padding is not None:
            x = nn.functional.pad(x, (self.edge_padding, self.edge_padding))
        if self.training and self.dither > 0:
            x = torch.randn_like(x).mul_(self.dither).add_(x)
        if self.preemph is not None:
            beyond = torch.arange(x.shape[1], device=x.device).unsqueeze(0) >= length.unsqueeze(1)  # (B, S)
            x = torch.cat((x[:, :1], x[:, 1:] - self.preemph * x[:, :-1]), dim=1)
            x = x.masked_fill_(beyond, 0.0)
        return x

    def power_spectrum(self, x: Tensor) -> Tensor:
        """(B, S) -> (B, bins, T)."""
        window = self.featurizer.window
        x = torch.stft(
            x,
            n_fft=self.n_fft,
            hop_length=self.hop_length,
            win_length=self.win_length,
            center=self.edge_padding is None,
            window=None if window is None else window.to(torch.float),
            return_complex=True,
            pad_mode="constant",
        )
        x = torch.view_as_real(x).pow(2).sum(-1).sqrt_()
        if self.training and self.narrowband_probability > 0:
            # NeMo draws these from an unseeded generator of its own; ours follows the run's seed.
            narrow = torch.rand(x.shape[0]) < self.narrowband_probability
            x[narrow.to(x.device), self.narrowband_bin :] = 0.0
        return x if self.mag_power == 1.0 else x.pow(self.mag_power)


class Tables(nn.Module):
    """Window and mel filters, under the names they have in NeMo's state dict (`featurizer.window`, `featurizer.fb`)."""

    window: Tensor | None
    fb: Tensor

    def __init__(self, window: Tensor | None, filters: NDArray[np.float32]) -> None:
        super().__init__()
        self.register_buffer("window", window)
        self.register_buffer("fb", torch.from_numpy(filters).unsqueeze(0))  # (1, D, bins)


def normalise(x: Tensor, frames: Tensor, how: str | Mapping[str, Any]) -> Tensor:
    """Zero mean and unit deviation over the valid frames of each utterance (B, D, T)."""
    if isinstance(how, Mapping):
        mean, std = (torch.tensor(how[name], device=x.device) for name in ("fixed_mean", "fixed_std"))
        return (x - mean.view(1, -1, 1)) / std.view(1, -1, 1)
    if how == "all_features":
        spans = [x[i, :, :n] for i, n in enumerate(frames.tolist())]
        mean = torch.stack([span.mean() for span in spans]).view(-1, 1, 1)
        std = torch.stack([span.std() for span in spans]).view(-1, 1, 1)
        return (x - mean) / (std + STD_GUARD)
    valid = (torch.arange(x.shape[2], device=x.device) < frames.unsqueeze(1)).unsqueeze(1)  # (B, 1, T)
    count = valid.sum(dim=2)
    mean = (torch.where(valid, x, 0.0).sum(dim=2) / count).unsqueeze(2)
    centred = x - mean
    variance = (torch.where(valid, centred, 0.0) ** 2).sum(dim=2) / (count - 1.0)
    std = torch.sqrt(variance)
    std = std.masked_fill(std.isnan(), 0.0) + STD_GUARD  # one valid frame has no deviation
    return (centred / std.unsqueeze(2)).masked_fill_(~valid, 0.0)


def _checked_normalisation(how: Normalisation) -> str | Mapping[str, Any] | None:
    if isinstance(how, Mapping):
        if {"fixed_mean", "fixed_std"} <= set(how):
            return how
    elif how in ("per_feature", "all_features"):
        return how
    elif how is None or how.lower() in ("none", "na"):
        return None
    raise ValueError(
        f"normalize is {how!r}; expected per_feature, all_features, null, or a mapping with fixed_mean and fixed_std"
    )


def _guard_value(value: float | str) -> float:
    if isinstance(value, str):
        if value not in ("tiny", "eps"):
            raise ValueError(f"log_zero_guard_value is {value!r}; expected a number, 'tiny' or 'eps'")
        return float(getattr(torch.finfo(torch.float32), value))
    return value


def _samples(seconds: float | None, samples: int | None, sample_rate: int, name: str) -> int:
    if bool(seconds) == bool(samples):
        raise ValueError(f"give either {name} in seconds or n_{name} in samples, not {seconds!r} and {samples!r}")
    return int(seconds * sample_rate) if seconds else int(samples or 0)
