"""One model in every format: conversions keep every bit, and errors say what cannot be converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file
from torch import Tensor

from nest_ssl.checkpoint import SavedModel, convert, load_nemo
from nest_ssl.checkpoint.restore import read_config, read_model, write_model
from nest_ssl.errors import CheckpointError

NEST = "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel"
CONFIG = {"sample_rate": 16000, "optim": {"lr": 1e-6}, "encoder": {"sizes": [1, 2]}, "other_version": {"x": None}}
WEIGHTS = {"b.weight": torch.randn(3, 2), "a.bias": torch.randn(2), "codebooks": torch.randn(4, dtype=torch.float64)}


def write(path: Path, config: Any = CONFIG) -> Path:
    """Write the model in the format that the suffix names; checkpoints contain the configuration as NeMo's do."""
    if path.suffix == ".ckpt":
        torch.save({"state_dict": WEIGHTS, "hyper_parameters": {"cfg": OmegaConf.create(config)}}, path)
    else:
        write_model(SavedModel(OmegaConf.create(config), WEIGHTS), path)
    return path


def assert_is_the_model(path: Path) -> None:
    saved = read_model(path)
    assert sorted(saved.state_dict) == sorted(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        found: Tensor = saved.state_dict[name]
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)
    assert saved.config == {"nemo_version": "3.0.0", **CONFIG, "target": NEST}
    assert read_config(path) == saved.config


@pytest.mark.parametrize("source", [".nemo", ".safetensors", ".ckpt"])
@pytest.mark.parametrize("target", [".nemo", ".safetensors"])
def test_every_format_can_be_converted_into_every_other(tmp_path: Path, source: str, target: str) -> None:
    convert(write(tmp_path / f"a{source}"), tmp_path / "new folder" / f"b{target}")
    assert_is_the_model(tmp_path / "new folder" / f"b{target}")


def test_a_nemo_archive_with_another_suffix_is_read(tmp_path: Path) -> None:
    assert_is_the_model(write(tmp_path / "model.nemo").rename(tmp_path / "model.v1"))


def test_references_are_resolved_during_conversion(tmp_path: Path) -> None:
    convert(write(tmp_path / "a.ckpt", {"rate": 8, "same": "${rate}"}), tmp_path / "b.nemo")
    assert OmegaConf.to_container(load_nemo(tmp_path / "b.nemo").config, resolve=False)["same"] == 8  # type: ignore[index, call-overload]


@pytest.mark.parametrize(("source", "target"), [("a.pt", "b.nemo"), ("a.nemo", "b.ckpt"), ("a.nemo", "b")])
def test_an_unknown_suffix_is_reported(tmp_path: Path, source: str, target: str) -> None:
    refused(tmp_path / source, tmp_path / target, r"its suffix names no format here; expected \.nemo or")


def test_a_file_is_not_converted_onto_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nemo")
    (tmp_path / "link.nemo").symlink_to(path)
    for target in (path, tmp_path / "link.nemo", tmp_path / "x" / ".." / "a.nemo"):
        refused(path, target, "is the source itself")


def test_weights_alone_are_not_a_model(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    torch.save({"state_dict": WEIGHTS}, tmp_path / "a.ckpt")
    torch.save({"state_dict": WEIGHTS, "hyper_parameters": {"lr": 0.1}}, tmp_path / "b.ckpt")
    for name in ("a.safetensors", "a.ckpt", "b.ckpt"):
        refused(tmp_path / name, tmp_path / "c.nemo", "has weights but no configuration of the model")


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_a_model_of_another_class_is_not_converted(tmp_path: Path, suffix: str) -> None:
    other = {**CONFIG, "target": "nemo.collections.asr.models.ctc_models.EncDecCTCModel"}
    path = tmp_path / f"a{suffix}"
    if suffix == ".ckpt":
        write(path, other)
    else:
        save_file(WEIGHTS, path, {"model_config.yaml": OmegaConf.to_yaml(OmegaConf.create(other))})
    refused(path, tmp_path / "b.nemo", r"holds a nemo\.\S+\.EncDecCTCModel; only EncDecDenoiseMaskedTokenPredModel")


def test_a_checkpoint_cannot_read_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "a secret")
    refused(write(tmp_path / "a.ckpt", {"home": "${oc.env:HOME}"}), tmp_path / "b.nemo", "asks to evaluate")


def test_settings_that_are_repeated_many_times_are_read_quickly(tmp_path: Path) -> None:
    settings: list[Any] = [1]
    for _ in range(100):
        settings = [settings, settings]
    torch.save({"state_dict": WEIGHTS, "hyper_parameters": {"cfg": {"a": settings}}}, tmp_path / "a.ckpt")
    refused(tmp_path / "a.ckpt", tmp_path / "b.nemo", "aliases|nested|damaged")


def refused(source: Path, target: Path, message: str) -> None:
    """Check that the error is one line and that nothing is written."""
    before = set(source.parent.iterdir())
    with pytest.raises(CheckpointError, match=message) as caught:
        convert(source, target)
    assert "\n" not in str(caught.value)
    assert set(source.parent.iterdir()) == before
