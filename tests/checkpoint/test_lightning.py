"""Lightning checkpoints: those of a real run, those with NeMo's pickled configuration, and hostile ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from nest_ssl.checkpoint import load_lightning_checkpoint, nemo_checkpoint_types
from nest_ssl.training.optim import build_optimizer, build_scheduler
from tests.checkpoint.refusal import refused

CONFIG = {"rate": 16000, "lr": 1e-6, "betas": [0.9, 0.98], "name": None, "deep": [{"on": True}], "ref": "${rate}"}


class Model(pl.LightningModule):
    """A model that stores its configuration as NeMo's models do: as pickled OmegaConf objects."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self.save_hyperparameters()
        self._set_hparams(OmegaConf.create({"cfg": cfg}))
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self.parameters(), {"name": "adamw", "lr": 0.1})
        schedule = build_scheduler(optimizer, {"name": "NoamAnnealing", "d_model": 4, "warmup_steps": 3}, max_steps=9)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def trainer(steps: int) -> pl.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", devices=1, max_steps=steps, enable_checkpointing=False, **quiet)


def data() -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)


def new_model() -> Model:
    torch.manual_seed(0)
    return Model(OmegaConf.create(CONFIG))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    run = trainer(2)
    model = new_model()
    run.fit(model, data())
    path = tmp_path_factory.mktemp("run") / "last.ckpt"
    run.save_checkpoint(path)
    return path, model


def test_a_run_with_a_pickled_configuration_is_read_as_plain_values(trained: tuple[Path, Model]) -> None:
    path, model = trained
    with pytest.raises(Exception, match="omegaconf"):
        torch.load(path, weights_only=True)  # torch alone refuses it
    checkpoint = load_lightning_checkpoint(path)
    assert checkpoint["hyper_parameters"] == {"cfg": CONFIG}  # the reference is still text
    assert checkpoint["global_step"] == 2
    for name, tensor in model.state_dict().items():
        assert torch.equal(checkpoint["state_dict"][name], tensor)


def test_lightning_resumes_from_it_with_the_safe_reader(trained: tuple[Path, Model]) -> None:
    straight, resumed = new_model(), new_model()
    trainer(4).fit(straight, data())
    with nemo_checkpoint_types():
        trainer(4).fit(resumed, data(), ckpt_path=trained[0], weights_only=True)
    assert torch.equal(resumed.layer.weight, straight.layer.weight)
    assert not torch.equal(resumed.layer.weight, trained[1].layer.weight)


def test_a_reference_to_the_environment_stays_text(tmp_path: Path) -> None:
    config = OmegaConf.create({"home": "${oc.env:HOME}"})
    torch.save({"state_dict": {}, "hyper_parameters": {"cfg": config}}, tmp_path / "x.ckpt")
    checkpoint = load_lightning_checkpoint(tmp_path / "x.ckpt")
    assert checkpoint["hyper_parameters"] == {"cfg": {"home": "${oc.env:HOME}"}}


class DictOfConfig:
    """Pickles as `dict(DictConfig(...))`, which would resolve references if the real classes were called."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (OmegaConf.create({"home": "${oc.env:HOME}"}),))


def test_references_cannot_be_resolved_by_a_crafted_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "a secret")
    torch.save({"state_dict": {}, "hyper_parameters": DictOfConfig()}, tmp_path / "x.ckpt")
    assert "a secret" in str(torch.load(tmp_path / "x.ckpt", weights_only=False))
    assert "a secret" not in str(load_lightning_checkpoint(tmp_path / "x.ckpt"))


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("key", ["state_dict", "hyper_parameters", "callbacks"])
def test_code_in_a_checkpoint_never_runs(tmp_path: Path, key: str) -> None:
    escaped = tmp_path / "escaped"
    torch.save({"state_dict": {}, key: {"x": Touch(escaped)}}, tmp_path / "x.ckpt")
    refused(
        load_lightning_checkpoint,
        tmp_path / "x.ckpt",
        r"refused: it holds (_?io|builtins)\.open; only tensors and plain values are loaded",
    )
    assert not escaped.exists()
    torch.load(tmp_path / "x.ckpt", weights_only=False)
    assert escaped.exists()


def test_the_permission_for_omegaconf_classes_ends_after_loading(trained: tuple[Path, Model]) -> None:
    before = set(torch.serialization.get_safe_globals())  # a set, because torch returns them in any order
    load_lightning_checkpoint(trained[0])
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize("content", [b"", b"rubbish", b"PK\x03\x04" + bytes(100), bytes(1000)])
def test_files_of_other_kinds_are_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.ckpt").write_bytes(content)
    refused(
        load_lightning_checkpoint,
        tmp_path / "x.ckpt",
        "damaged, or not a Lightning checkpoint" if content else "is empty",
    )


def test_an_incomplete_checkpoint_is_reported(trained: tuple[Path, Model], tmp_path: Path) -> None:
    whole = trained[0].read_bytes()
    (tmp_path / "x.ckpt").write_bytes(whole[: len(whole) // 2])
    refused(load_lightning_checkpoint, tmp_path / "x.ckpt", "damaged")


def test_weights_without_the_state_of_a_run_are_reported(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.ones(1)}, tmp_path / "x.ckpt")
    refused(load_lightning_checkpoint, tmp_path / "x.ckpt", "it has no state_dict")
    refused(load_lightning_checkpoint, tmp_path / "none.ckpt", "no such file")
