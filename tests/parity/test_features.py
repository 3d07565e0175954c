"""`nest-ssl features` writes the same numbers as NeMo for the same archive and batch, layer by layer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from nest_ssl.apps.features import Encoder
from nest_ssl.apps.features.extract import ExtractionRequest, extract
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config
from tests.parity.variants import CONFIG

SCRIPT = Path(__file__).with_name("exchange_features.py")
SAMPLES = (40000, 31234, 16000, 900)
LAYERS = 4


@pytest.fixture(scope="module", params=["stock", "abs_pos", "striding_layer_norm"])
def nemo_layers(
    request: pytest.FixtureRequest, nemo: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, list[Tensor]]]:
    """A folder with an archive and audio, and NeMo's layers for them."""
    folder = tmp_path_factory.mktemp("features")
    changes = {
        "stock": [],
        "abs_pos": ["model.encoder.self_attention_model=abs_pos"],
        "striding_layer_norm": ["model.encoder.subsampling=striding", "model.encoder.conv_norm_type=layer_norm"],
    }[request.param]
    _model([f"model.encoder.n_layers={LAYERS}", *changes]).save_to(folder / "model.nemo")
    generator = np.random.default_rng(1)
    for number, samples in enumerate(SAMPLES):
        noise = generator.normal(0, 3000, samples).astype(np.int16)
        soundfile.write(folder / f"{number}.wav", noise, 16000)
    finished = subprocess.run([nemo, str(SCRIPT), str(folder)], capture_output=True, text=True, errors="replace")
    assert finished.returncode == 0, finished.stderr[-2000:]
    return folder, torch.load(folder / "nemo.pt", weights_only=True)


def test_files_contain_the_layers_of_nemo(nemo_layers: tuple[Path, dict[str, list[Tensor]]], tmp_path: Path) -> None:
    folder, expected = nemo_layers
    torch.set_num_threads(1)
    audio = [str(folder / name) for name in expected]
    summary = extract(ExtractionRequest(folder / "model.nemo", audio, tmp_path, layers="all"), lambda *news: None)
    assert summary.written == len(SAMPLES)
    for name, layers in expected.items():
        found = np.load(tmp_path / f"{name}.npy")
        assert len(found) == len(layers) == LAYERS + 1
        assert all(np.array_equal(ours, theirs.numpy()) for ours, theirs in zip(found, layers, strict=True)), name


def test_fast_differs_only_by_rounding(nemo_layers: tuple[Path, dict[str, list[Tensor]]]) -> None:
    folder, expected = nemo_layers
    encoder = Encoder.load(folder / "model.nemo", "fast", "cpu")
    for name, layers in expected.items():
        waveform = torch.from_numpy(soundfile.read(folder / name, dtype="float32")[0])
        (found,) = encoder.encode([waveform], range(LAYERS + 1))
        for ours, theirs in zip(found, layers, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def _model(changes: list[str]) -> EncDecDenoiseMaskedTokenPredModel:
    """Return a model whose running means differ from those of a new model."""
    pl.seed_everything(3, verbose=False)
    model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG, changes).model)
    signal = 0.1 * torch.randn(3, 40000)
    with torch.no_grad():
        features, frames = model.preprocessor(input_signal=signal, length=torch.tensor([40000, 31234, 20000]))
        model.encoder(audio_signal=features, length=frames)
    return model
