"""`.safetensors` files: weights and configuration are read back; malicious files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nest_ssl.checkpoint import load_safetensors, save_safetensors
from nest_ssl.checkpoint import safetensors as safetensors_module
from nest_ssl.checkpoint.safetensors import load_safetensors_config
from tests.checkpoint.refusal import refused


class Model(nn.Module):
    """A model with tensors of several types, one empty, one not contiguous, and two names for one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cfg: DictConfig = OmegaConf.create({"sample_rate": 16000, "optim": {"lr": 1e-6, "betas": [0.9, 0.98]}})
        self.layer = nn.Linear(3, 2)
        self.same_layer = self.layer
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("codebooks", torch.randn(4, 5, dtype=torch.float64).T)
        self.register_buffer("brain_half", torch.randn(3).bfloat16())
        self.register_buffer("nothing", torch.zeros(0, 3))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return sorted(one) == sorted(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_a_model_is_restored_to_the_last_bit(tmp_path: Path) -> None:
    model = Model()
    save_safetensors(model, tmp_path / "x.safetensors")
    loaded = load_safetensors(tmp_path / "x.safetensors")
    assert same(loaded.state_dict, model.state_dict())
    assert loaded.config.optim == model.cfg.optim
    assert load_safetensors_config(tmp_path / "x.safetensors") == loaded.config
    assert same(load_file(tmp_path / "x.safetensors"), model.state_dict())  # other tools can read the weights
    assert model.same_layer.weight is model.layer.weight  # the model is unchanged


def test_the_same_model_gives_the_same_file(tmp_path: Path) -> None:
    model = Model()
    for index in range(8):  # with a random order, this test would still pass once in 2 ** 7 runs
        save_safetensors(model, tmp_path / f"{index}.safetensors")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_a_failure_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    save_safetensors(Model(), path)
    before = path.read_bytes()

    def half(_: object, file: Path, __: object) -> None:
        file.write_bytes(b"half of the weights")
        raise OSError("no space left on device")

    monkeypatch.setattr(safetensors_module, "save_file", half)
    with pytest.raises(OSError, match="no space left"):
        save_safetensors(Model(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_weights_of_other_tools_have_no_configuration(tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        save_file({"w": torch.ones(2)}, tmp_path / "x.safetensors", metadata)
        loaded = load_safetensors(tmp_path / "x.safetensors")
        assert loaded.config == {}
        assert same(loaded.state_dict, {"w": torch.ones(2)})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("home: ${oc.env:HOME}", "asks to evaluate"),
        ("!!python/object/apply:os.system ['touch escaped']", "damaged"),
        ("a: &a [x]\nb: *a", "aliases"),
        ("a: " + "[" * 1000, "nested"),
        ("- a", "not a table"),
        ("a: 1\n" + "#" * 2**23, "longer than"),
    ],
)
def test_a_configuration_that_is_unsafe_or_broken_is_refused(
    tmp_path: Path, config: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"w": torch.ones(2)}, tmp_path / "x.safetensors", {"model_config.yaml": config})
    refused(load_safetensors, tmp_path / "x.safetensors", message)
    assert not (tmp_path / "escaped").exists()


def header(value: object, size: int | None = None) -> bytes:
    text = json.dumps(value).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"rubbish",
        bytes(100),
        header({}, 2**62),
        header({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
        header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}),
        header({"w": {"dtype": "object", "shape": [2], "data_offsets": [0, 8]}}) + bytes(8),
        header({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}) + bytes(8),
        header({"__metadata__": {"model_config.yaml": {"a": 1}}}),
    ],
)
def test_damaged_files_and_other_kinds_of_files_are_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    refused(load_safetensors, tmp_path / "x.safetensors", "damaged, or not a .safetensors file")


@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_an_incomplete_download_is_reported(tmp_path: Path, share: float) -> None:
    path = tmp_path / "x.safetensors"
    save_safetensors(Model(), path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refused(load_safetensors, path, "damaged")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    refused(load_safetensors, tmp_path / "none.safetensors", "no such file")
