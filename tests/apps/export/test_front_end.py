"""The exported log-mel: the same frames as the model's, and as accurate as torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nest_ssl.apps.export.front_end import ExportableLogMel
from nest_ssl.data.synthesis import Voice, speech
from nest_ssl.model import AudioToMelSpectrogramPreprocessor

SETTINGS: dict[str, Any] = {"window_size": 0.025, "features": 80, "n_fft": 512}


class TrueLogMel(AudioToMelSpectrogramPreprocessor):
    """Compute the Fourier transform in double precision."""

    def power_spectrum(self, x: Tensor) -> Tensor:
        window = self.featurizer.window
        assert window is not None
        sizes = {"n_fft": self.n_fft, "hop_length": self.hop_length, "win_length": self.win_length}
        x = torch.stft(x.double(), **sizes, window=window.double(), pad_mode="constant", return_complex=True)
        return x.abs().pow(2).float()


def both(settings: dict[str, Any]) -> tuple[AudioToMelSpectrogramPreprocessor, ExportableLogMel]:
    ours = AudioToMelSpectrogramPreprocessor(**settings).eval()
    return ours, ExportableLogMel(settings, ours.state_dict())


def utterance() -> Tensor:
    samples = speech(Voice.number(0, seed=0), 48000, np.random.RandomState(0))
    return torch.from_numpy(samples.astype(np.float32)).unsqueeze(0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pad_to": 0},
        {"window": "none"},
        {"mag_power": 1.0, "normalize": None},
        {"n_fft": 1024, "window_stride": 0.0125, "pad_to": 8},
        {"preemph": None, "frame_splicing": 2, "log_zero_guard_type": "clamp"},
    ],
)
@pytest.mark.parametrize("samples", [2559, 2560, 2561, 20000])
def test_any_settings_and_lengths_give_the_models_features(settings: dict[str, Any], samples: int) -> None:
    ours, exported = both({**SETTINGS, **settings})
    signal = 0.1 * torch.randn(2, samples, generator=torch.Generator().manual_seed(samples))
    lengths = torch.tensor([samples, samples // 2])
    expected, expected_frames = ours(signal, lengths)
    features, frames = exported.features(signal, lengths)
    assert frames.equal(expected_frames)
    torch.testing.assert_close(features, expected, atol=1e-3, rtol=1e-4)


def test_speech_is_as_close_to_the_truth_as_by_torchs_own_transform() -> None:
    ours, exported = both(SETTINGS)
    signal = utterance()
    lengths = torch.tensor([signal.shape[1]])
    truth, _ = TrueLogMel(**SETTINGS).eval()(signal, lengths)
    torchs, _ = ours(signal, lengths)
    features, _ = exported.features(signal, lengths)
    assert (features - truth).abs().mean() < 2 * (torchs - truth).abs().mean()
    assert (features - torchs).abs().max() < 1e-3
