"""`save_to`, `restore_from` and `from_pretrained`: the real model to a file and back."""

from __future__ import annotations

import io
import logging
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save_file
from torch import Tensor

from nest_ssl.checkpoint import convert, load_nemo
from nest_ssl.errors import CheckpointError, ConfigError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

CONFIG = Path(__file__).parents[2] / "config" / "nest_fast-conformer.yaml"
NO_DATA = ["model.train_ds.manifest_filepath=nowhere.json", "model.validation_ds.manifest_filepath=nowhere.json"]
restore = EncDecDenoiseMaskedTokenPredModel.restore_from


def new_model(*overrides: str) -> EncDecDenoiseMaskedTokenPredModel:
    torch.manual_seed(0)
    return EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG, [*NO_DATA, *overrides]).model)


@pytest.fixture(scope="module")
def model() -> EncDecDenoiseMaskedTokenPredModel:
    return new_model()


@pytest.fixture(scope="module")
def archive(model: EncDecDenoiseMaskedTokenPredModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "model.nemo"
    model.save_to(path)
    return path


def tampered(archive: Path, path: Path, changes: dict[str, Any], weights: bytes | None = None) -> Path:
    """Write the archive with other settings (dotted keys) and, if given, other bytes as its weights."""
    saved = load_nemo(archive)
    for key, value in changes.items():
        OmegaConf.update(saved.config, key, value)
    if weights is None:
        buffer = io.BytesIO()
        torch.save(saved.state_dict, buffer)
        weights = buffer.getvalue()
    config = OmegaConf.to_yaml(saved.config).encode()
    with tarfile.open(path, "w:") as tar:
        for name, content in (("model_config.yaml", config), ("model_weights.ckpt", weights)):
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return path


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def log_probs(model: EncDecDenoiseMaskedTokenPredModel) -> Tensor:
    speech = torch.randn(2, 32000, generator=torch.Generator().manual_seed(1))
    length = torch.tensor([32000, 20000])
    with torch.no_grad():
        return model.eval()(
            input_signal=speech,
            input_signal_length=length,
            noisy_input_signal=speech,
            noisy_input_signal_length=length,
        )[0]


@pytest.mark.parametrize("suffix", [".nemo", ".safetensors"])
@pytest.mark.parametrize("position", ["pre_conv", "post_conv"])  # the latter has two names for the sub-sampling
def test_a_model_is_restored_without_its_data(tmp_path: Path, suffix: str, position: str) -> None:
    saved = new_model(f"model.mask_position={position}", "model.num_books=2")
    saved.save_to(tmp_path / "new folder" / f"model{suffix}")
    torch.manual_seed(1)
    model = restore(tmp_path / "new folder" / f"model{suffix}", map_location="cpu")
    assert model.training
    assert model.train_dataloader() is None
    assert same_weights(model, saved)
    assert torch.equal(log_probs(model), log_probs(saved))
    settings = OmegaConf.to_container(saved.cfg, resolve=True)
    assert {key: value for key, value in model.cfg.items() if key not in ("target", "nemo_version")} == settings


def test_saving_a_restored_model_gives_the_same_file(archive: Path, tmp_path: Path) -> None:
    restore(archive, map_location="cpu").save_to(tmp_path / "again.nemo")
    assert (tmp_path / "again.nemo").read_bytes() == archive.read_bytes()


def test_a_checkpoint_of_a_run_can_be_restored_as_a_model(
    model: EncDecDenoiseMaskedTokenPredModel, tmp_path: Path
) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    convert(tmp_path / "last.ckpt", tmp_path / "model.safetensors")
    for name in ("last.ckpt", "model.safetensors"):
        assert same_weights(restore(tmp_path / name, map_location="cpu"), model)


def test_only_the_first_process_writes(
    model: EncDecDenoiseMaskedTokenPredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    model.save_to(tmp_path / "x.nemo")
    assert not list(tmp_path.iterdir())


def test_a_trainer_is_attached(archive: Path) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert restore(archive, map_location="cpu", trainer=trainer).trainer is trainer


def test_a_pretrained_model_is_a_local_file(archive: Path, model: EncDecDenoiseMaskedTokenPredModel) -> None:
    load = EncDecDenoiseMaskedTokenPredModel.from_pretrained
    assert same_weights(load(str(archive), map_location="cpu"), model)
    assert load(archive, return_config=True).encoder.d_model == 32
    for name in ("ssl_en_nest_large_v1.0", "nvidia/ssl_en_nest_large_v1.0"):
        with pytest.raises(CheckpointError, match=f"^'{name}': is not a file, and models are not downloaded"):
            load(name)


def test_the_configuration_is_read_without_the_weights(archive: Path, tmp_path: Path) -> None:
    path = tampered(archive, tmp_path / "x.nemo", {}, weights=b"not weights")
    assert restore(path, return_config=True).encoder.n_layers == 2
    refused("damaged", path)


def test_an_override_replaces_the_configuration(
    archive: Path, tmp_path: Path, model: EncDecDenoiseMaskedTokenPredModel
) -> None:
    whole = small_config(CONFIG, ["model.encoder.dropout=0.7", "model.optim.lr=9"])
    OmegaConf.save(whole, tmp_path / "override.yaml")
    stored = restore(archive, return_config=True)
    stored.encoder.dropout = 0.7
    for override in (tmp_path / "override.yaml", str(tmp_path / "override.yaml"), whole, whole.model, stored):
        restored = restore(archive, override, map_location="cpu")
        assert restored.encoder.layers[0].dropout.p == 0.7
        assert restored.cfg.optim.lr == (5.0 if override is stored else 9)
        assert same_weights(restored, model)
    assert restore(archive, whole, return_config=True).optim.lr == 9


def test_an_override_makes_a_model_of_weights_without_a_configuration(
    model: EncDecDenoiseMaskedTokenPredModel, tmp_path: Path
) -> None:
    save_file(dict(model.state_dict()), tmp_path / "x.safetensors")
    refused("has weights but no configuration of the model", tmp_path / "x.safetensors")
    assert same_weights(restore(tmp_path / "x.safetensors", model.cfg, map_location="cpu"), model)


def test_an_override_cannot_read_environment_variables(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "a secret")
    config = OmegaConf.create({"home": "${oc.env:HOME}", "model": {"sample_rate": "${home}"}})
    OmegaConf.save(config, tmp_path / "x.yaml")
    for override in (tmp_path / "x.yaml", config, config.model):
        assert "a secret" not in refused(r"asks to evaluate '\$\{oc\.env:HOME\}'", archive, override)


def test_an_invalid_override_is_named(archive: Path, tmp_path: Path) -> None:
    config: DictConfig = restore(archive, return_config=True)
    config.encoder.n_head = 4
    refused(r"^override_config_path: model\.encoder\.n_head: .*did you mean 'n_heads'", archive, config)
    OmegaConf.save(config, tmp_path / "x.yaml")
    refused(rf"^{re.escape(str(tmp_path))}.x\.yaml: model\.encoder\.n_head: ", archive, tmp_path / "x.yaml")
    refused("no such file", archive, tmp_path / "none.yaml")
    refused("has shape", archive, small_config(CONFIG, ["model.encoder.d_model=64"]))


def test_another_class_of_model_is_refused_by_name(archive: Path, tmp_path: Path) -> None:
    other = "nemo.collections.asr.models.ctc_models.EncDecCTCModel"
    path = tampered(archive, tmp_path / "x.nemo", {"target": other})
    message = rf"holds a {other}; only EncDecDenoiseMaskedTokenPredModel can be restored here"
    refused(message, path)
    refused(message, path, restore(archive, return_config=True))
    refused(message, archive, OmegaConf.create({"target": other}))
    refused(r"holds a \$\{nowhere\}", tampered(archive, tmp_path / "y.nemo", {"target": "${nowhere}"}))


def test_settings_of_other_versions_are_ignored_and_reported(
    archive: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, model: EncDecDenoiseMaskedTokenPredModel
) -> None:
    path = tampered(archive, tmp_path / "x.nemo", {"skip_nan_grad": False, "loss_list": {"a": 1}, "train_ds.new": 1})
    restored = restore(path, map_location="cpu")
    assert f"{path}: ignored settings that the model does not have: skip_nan_grad, loss_list" in caplog.messages
    assert "skip_nan_grad" not in restored.cfg
    assert restored.cfg.train_ds.new == 1  # kept, because it is read only for training
    assert same_weights(restored, model)


def test_an_unknown_option_of_a_part_is_refused(archive: Path, tmp_path: Path) -> None:
    path = tampered(archive, tmp_path / "x.nemo", {"encoder.new_attention": True})
    refused(rf"^{re.escape(str(path))}: model\.encoder\.new_attention: ConformerEncoder has no such option", path)


@pytest.mark.parametrize("target", ["os.system", "torch.nn.Linear", "nest_ssl.checkpoint.nemo.load_nemo"])
def test_only_known_classes_are_built(archive: Path, tmp_path: Path, target: str) -> None:
    path = tampered(archive, tmp_path / "x.nemo", {"encoder._target_": target})
    refused(rf"^{re.escape(str(path))}: .*_target_", path)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": None},
        {"encoder._target_": 3},
        {"encoder.n_layers": -1},
        {"encoder.d_model": "wide"},
        {"encoder.n_heads": 0},
        {"preprocessor.window_size": None},
        {"preprocessor.features": [1]},
        {"quantizer.num_books": {"a": 1}},
        {"decoder.feat_in": 1e400},
        {"mask_position": 7},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_values_that_fit_no_model_give_one_line(archive: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tampered(archive, tmp_path / "x.nemo", changes)
    refused(rf"^{re.escape(str(path))}: ", path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"encoder.d_model": 10**6},
            r"model\.encoder\.d_model: 1000000 asks for a model of .*; its weights are for one of",
        ),
        (
            {"encoder.d_model": 4096},
            r"model\.encoder\.d_model: 4096 asks for a model of 3\.\d+ GB .*; its weights are for",
        ),
        ({"encoder.n_layers": 10**6}, r"model\.encoder\.n_layers: 1000000; expected at most 1000"),
        ({"quantizer.num_classes": 10**9}, r"model\.quantizer\.num_classes: 1000000000 asks for"),
        ({"preprocessor.n_fft": 2**30}, r"model\.preprocessor\.n_fft: 1073741824 asks for"),
        ({"preprocessor.window_size": 1e9}, r"model\.preprocessor\.window_size: 1000000000.0 asks for"),
    ],
    ids=str,
)
@pytest.mark.parametrize("suffix", [".nemo", ".ckpt", ".safetensors"])
def test_a_model_whose_weights_do_not_fit_is_refused(
    archive: Path, tmp_path: Path, suffix: str, changes: dict[str, Any], message: str
) -> None:
    path = tampered(archive, tmp_path / "x.nemo", {"preprocessor.n_fft": None, **changes})
    if suffix == ".ckpt":
        saved = load_nemo(path)
        torch.save({"state_dict": saved.state_dict, "hyper_parameters": {"cfg": saved.config}}, tmp_path / "x.ckpt")
    elif suffix == ".safetensors":
        convert(path, tmp_path / "x.safetensors")
    refused(rf"^{re.escape(str(tmp_path / 'x'))}{suffix}: {message}", tmp_path / f"x{suffix}")


def test_weights_in_half_precision_are_accepted(model: EncDecDenoiseMaskedTokenPredModel, tmp_path: Path) -> None:
    halves = {name: t.half() if t.is_floating_point() else t for name, t in model.state_dict().items()}
    save_file(halves, tmp_path / "x.safetensors")
    restore(tmp_path / "x.safetensors", model.cfg, map_location="cpu")


def test_odd_names_in_a_file_leave_the_error_on_one_line(archive: Path, tmp_path: Path) -> None:
    save_file({**load_nemo(archive).state_dict, "a\nb" * 999: torch.ones(1)}, tmp_path / "x.safetensors")
    message = refused(
        "is in the file but not in the model", tmp_path / "x.safetensors", restore(archive, return_config=True)
    )
    assert len(message) < 500
    refused("holds a a b", tampered(archive, tmp_path / "y.nemo", {"target": "a\nb"}))


def test_strict_requires_the_same_tensors(archive: Path, tmp_path: Path) -> None:
    weights = dict(load_nemo(archive).state_dict)
    del weights["decoder.decoder_layers.0.bias"]
    save_file({**weights, "extra.a": torch.ones(1)}, tmp_path / "both.safetensors")
    save_file({**load_nemo(archive).state_dict, "extra.a": torch.ones(1)}, tmp_path / "more.safetensors")
    config = restore(archive, return_config=True)
    refused(r"decoder\.decoder_layers\.0\.bias is in the model but not", tmp_path / "both.safetensors", config)
    refused(r"extra\.a is in the file but not in the model", tmp_path / "more.safetensors", config)
    loaded = restore(tmp_path / "both.safetensors", config, map_location="cpu", strict=False).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_weights_without_any_common_tensor_are_refused_without_strict_too(archive: Path, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="none of its 1 tensors is in the model"):
        restore(tmp_path / "x.safetensors", restore(archive, return_config=True), strict=False)


def test_one_line_says_what_was_restored(
    archive: Path, caplog: pytest.LogCaptureFixture, our_messages: Callable[[], list[str]]
) -> None:
    caplog.set_level(logging.INFO, "nest_ssl")
    restore(archive, map_location="cpu")
    assert our_messages() == [f"restored EncDecDenoiseMaskedTokenPredModel from {archive}"]


def test_training_continues_from_safetensors_named_in_a_configuration(
    model: EncDecDenoiseMaskedTokenPredModel, tmp_path: Path
) -> None:
    model.save_to(tmp_path / "x.safetensors")
    other = new_model()
    torch.nn.init.zeros_(other.encoder.layers[0].self_attn.linear_q.weight)
    other.maybe_init_from_pretrained_checkpoint(
        OmegaConf.create({"init_from_nemo_model": str(tmp_path / "x.safetensors")})
    )
    assert same_weights(other, model)


def refused(message: str, *arguments: Any) -> str:
    with pytest.raises(CheckpointError, match=message) as caught:
        restore(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def checkpoint_of(model: EncDecDenoiseMaskedTokenPredModel, path: Path, **changes: Any) -> Path:
    """Write a Lightning checkpoint of the model; keywords replace its entries."""
    content = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams), **changes}
    torch.save({"pytorch-lightning_version": pl.__version__, "epoch": 0, "global_step": 0, **content}, path)
    return path


def test_load_from_checkpoint_uses_the_safe_reader(model: EncDecDenoiseMaskedTokenPredModel, tmp_path: Path) -> None:
    load = EncDecDenoiseMaskedTokenPredModel.load_from_checkpoint
    path = checkpoint_of(model, tmp_path / "last.of.all")
    assert same_weights(load(path, map_location="cpu"), model)
    assert same_weights(load(str(path), "cpu", None, True, True, cfg=model.cfg), model)
    large: Any = OmegaConf.to_container(model.cfg, resolve=True)
    large["encoder"] |= {"d_model": 16384, "n_layers": 20}
    large_path = checkpoint_of(model, tmp_path / "large.ckpt", hyper_parameters={"cfg": large})
    with pytest.raises(CheckpointError, match="its weights are for one of at most"):
        load(large_path)
    bomb: dict[str, Any] = {"state_dict": {}, "x": torch.ones(1).expand(10**6, 10**4)}
    torch.save(bomb, tmp_path / "bomb.ckpt")
    with pytest.raises(CheckpointError, match="many times the memory"):
        load(tmp_path / "bomb.ckpt")
    for wrong in ({"weights_only": False}, {"hparams_file": "x.yaml"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            load(path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="checkpoint_path: BytesIO is not the path"):
        load(io.BytesIO())  # type: ignore[arg-type]


def test_weights_with_nan_are_neither_restored_nor_resumed(
    model: EncDecDenoiseMaskedTokenPredModel, tmp_path: Path
) -> None:
    name = "encoder.layers.1.norm_out.weight"
    spoilt = {
        key: torch.full_like(value, torch.nan) if key == name else value for key, value in model.state_dict().items()
    }
    path = checkpoint_of(model, tmp_path / "spoilt.ckpt", state_dict=spoilt)
    with pytest.raises(CheckpointError, match=f"^{re.escape(str(path))}: {name} holds NaN"):
        restore(path)
    for entries in ({"state_dict": spoilt}, {"state_dict": {}, "optimizer_states": [{"state": {0: spoilt[name]}}]}):
        with pytest.raises(CheckpointError, match=r"the checkpoint: .* NaN"):
            new_model().on_load_checkpoint(entries)
    complex_weights = {**model.state_dict(), name: model.state_dict()[name].to(torch.complex64)}
    path = checkpoint_of(model, tmp_path / "complex.ckpt", state_dict=complex_weights)
    with pytest.raises(CheckpointError, match=f"{name} is complex64, in the model float32"):
        restore(path)
