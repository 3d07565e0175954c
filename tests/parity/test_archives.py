"""Archives can be exchanged: NeMo restores ours, we restore NeMo's, and no bit changes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from nest_ssl.checkpoint import convert, load_nemo, save_safetensors
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config
from tests.parity.exchange_archives import encode, eval_outputs
from tests.parity.variants import CONFIG

SCRIPT = Path(__file__).with_name("exchange_archives.py")


@dataclass(frozen=True)
class Exchange:
    """Our model, the folder with the files of both sides, and NeMo's results for its model, ours and a CTC model."""

    model: EncDecDenoiseMaskedTokenPredModel
    folder: Path
    speech: dict[str, Tensor]
    nemo: dict[str, Any]


@pytest.fixture(scope="module", params=["nemo", "nemo_273"])
def exchange(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exchange:
    python = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("archives")
    make_dummy_corpus(folder / "dummy")
    config = _config(folder / "dummy")
    OmegaConf.save(config, folder / "config.yaml")
    speech = _speech()
    torch.save(speech, folder / "speech.pt")
    model = _our_model(config, speech)
    model.save_to(folder / "ours.nemo")
    save_safetensors(model, folder / "ours.safetensors")
    convert(folder / "ours.safetensors", folder / "via_safetensors.nemo")
    finished = subprocess.run([python, str(SCRIPT), str(folder)], capture_output=True, text=True, errors="replace")
    assert finished.returncode == 0, finished.stderr[-2000:]
    shutil.rmtree(folder / "dummy")  # a model is restored without its data
    return Exchange(model, folder, speech, torch.load(folder / "nemo.pt", weights_only=True))


@pytest.mark.parametrize("archive", ["ours", "via_safetensors"])
def test_nemo_restores_our_archives(exchange: Exchange, archive: str) -> None:
    seen = exchange.nemo[archive]
    assert seen["config"] == OmegaConf.to_container(load_nemo(exchange.folder / "ours.nemo").config)
    assert seen["config"].items() >= _container(exchange.model.cfg).items()
    assert_same(seen["weights"], dict(exchange.model.state_dict()))
    assert_same(seen["outputs"], eval_outputs(exchange.model, exchange.speech))


@pytest.mark.parametrize("name", ["theirs.nemo", "theirs.ckpt"])
def test_we_restore_archives_of_nemo(exchange: Exchange, name: str) -> None:
    model = EncDecDenoiseMaskedTokenPredModel.restore_from(exchange.folder / name, map_location="cpu")
    seen = exchange.nemo["theirs"]
    assert _container(model.cfg) == seen["config"]
    assert_same(dict(model.state_dict()), seen["weights"])
    assert_same(eval_outputs(model, exchange.speech), seen["outputs"])


def test_a_nemo_model_is_unchanged_after_conversion_to_safetensors_and_back(exchange: Exchange, tmp_path: Path) -> None:
    convert(exchange.folder / "theirs.nemo", tmp_path / "theirs.safetensors")
    convert(tmp_path / "theirs.safetensors", tmp_path / "again.nemo")
    for name in ("theirs.safetensors", "again.nemo"):
        model = EncDecDenoiseMaskedTokenPredModel.restore_from(tmp_path / name, map_location="cpu")
        assert _container(model.cfg) == exchange.nemo["theirs"]["config"]
        assert_same(dict(model.state_dict()), exchange.nemo["theirs"]["weights"])
        assert_same(eval_outputs(model, exchange.speech), exchange.nemo["theirs"]["outputs"])


def test_a_ctc_model_of_nemo_starts_from_our_encoder(exchange: Exchange) -> None:
    ctc = exchange.nemo["ctc"]
    ours = _part(exchange.model.state_dict(), "preprocessor.", "encoder.")
    assert_same(_part(ctc["after"], "preprocessor.", "encoder."), ours)
    assert any(not torch.equal(ctc["before"][name], tensor) for name, tensor in ours.items())
    assert_same(_part(ctc["after"], "decoder."), _part(ctc["before"], "decoder."))
    assert_same(ctc["outputs"], encode(exchange.model, exchange.speech))


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Check that both have the same names, types and bits."""
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def _part(weights: dict[str, Tensor], *prefixes: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name.startswith(prefixes)}


def _container(config: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def _config(corpus: Path) -> DictConfig:
    data = {
        "train_ds": {"manifest_filepath": "train_manifest.json", "noise_manifest": "noise_manifest.json"},
        "validation_ds": {"manifest_filepath": "val_manifest.json", "noise_manifest": "noise_manifest.json"},
    }
    changes = [f"model.{node}.{key}={corpus / name}" for node, keys in data.items() for key, name in keys.items()]
    return small_config(CONFIG, changes)


def _speech() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    clean, noise = 0.1 * torch.randn(2, 3, 40000, generator=generator)
    return {"clean": clean, "noisy": clean + noise, "lengths": torch.tensor([40000, 31234, 20000])}


def _our_model(config: DictConfig, speech: dict[str, Tensor]) -> EncDecDenoiseMaskedTokenPredModel:
    """Return a model whose running means also differ from those of a new model."""
    pl.seed_everything(3, verbose=False)
    model = EncDecDenoiseMaskedTokenPredModel(cfg=config.model)
    with torch.no_grad():
        encoded = model.preprocessor(input_signal=speech["noisy"], length=speech["lengths"])
        model.encoder(audio_signal=encoded[0], length=encoded[1])
    return model
