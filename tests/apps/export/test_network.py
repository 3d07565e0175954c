"""The network that is exported computes the same as the model, and its log-mel is as accurate as torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nest_ssl.apps.export.export import difference
from nest_ssl.apps.export.interface import Interface, encode_eagerly
from nest_ssl.apps.export.network import ExportableLogMel, Kind, exportable
from nest_ssl.data.synthesis import Voice, speech
from nest_ssl.errors import NestError
from nest_ssl.model import AudioToMelSpectrogramPreprocessor
from tests.apps.export.saved_models import small_model

CAUSAL = ["model.encoder.causal_downsampling=true", "model.encoder.conv_context_size=causal"]
CHUNKED = ["model.encoder.att_context_style=chunked_limited", "model.encoder.att_context_size=[8,3]"]
POOLED = ["model.encoder.reduction=pooling", "model.encoder.reduction_factor=2", "model.encoder.reduction_position=0"]
STRIDED = [
    "model.encoder.reduction=striding",
    "model.encoder.reduction_factor=2",
    "model.encoder.reduction_position=-1",
]
FUSED = ["model.encoder.use_pytorch_sdpa=true", "model.encoder.use_pytorch_sdpa_backends=[MATH]"]


@pytest.mark.parametrize("kind", ["audio", "features"])
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model.encoder.self_attention_model=abs_pos", "model.encoder.subsampling=stacking_norm"],
        [*CAUSAL, *CHUNKED, "model.encoder.conv_norm_type=layer_norm"],
        ["model.encoder.subsampling=vggnet", *POOLED],
        ["model.encoder.subsampling=striding", *STRIDED, "model.encoder.untie_biases=false"],
        [*FUSED, "model.encoder.att_context_size=[4,2]", "model.mask_position=post_conv"],
        ["model.encoder.feat_out=24", "model.encoder.xscaling=false", "model.encoder.pos_emb_max_len=20"],
    ],
    ids=["usual", "absolute", "causal", "vggnet", "striding", "fused", "projected"],
)
def test_every_kind_of_encoder_gives_the_models_numbers(overrides: list[str], kind: Kind) -> None:
    model = small_model(*overrides)
    interface = Interface.of(model, kind)
    x, lengths = interface.batch([interface.steps(3.1), interface.shortest], torch.Generator().manual_seed(0))
    with torch.no_grad():
        encoded = exportable(model, kind)(x, lengths)
    assert difference(encoded, encode_eagerly(model, interface, x, lengths)) < 1e-4


def test_the_model_is_left_as_it_was() -> None:
    model = small_model("model.mask_position=post_conv")
    before = {name: type(module) for name, module in model.named_modules()}
    exportable(model, "audio")
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("setting", ["normalize: all_features", "exact_pad: true"])
def test_a_log_mel_that_cannot_be_exported_is_named_with_the_way_out(setting: str) -> None:
    model = small_model(f"model.preprocessor.{setting.replace(': ', '=')}")
    with pytest.raises(NestError, match=f"model.preprocessor.{setting} cannot be exported; use --input features"):
        exportable(model, "audio")
    exportable(model, "features")


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
