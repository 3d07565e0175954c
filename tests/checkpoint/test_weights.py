"""Weights that torch would load without a warning, such as complex numbers, integers or infinities, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from nest_ssl.checkpoint import initialise_from_pretrained
from nest_ssl.checkpoint.weights import refuse_nonfinite_optimizer, refuse_unusable_weights
from nest_ssl.errors import CheckpointError

OWN = {"w": torch.zeros(2, 3), "seen": torch.tensor(0), "flag": torch.tensor(True)}


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("w", torch.zeros(2, 3, dtype=torch.complex64), "w is complex64, in the model float32; it is not converted"),
        ("w", torch.zeros(2, 3, dtype=torch.int64), "w is int64, in the model float32"),
        ("w", torch.zeros(2, 3, dtype=torch.bool), "w is bool, in the model float32"),
        ("w", torch.zeros(2, 3, dtype=torch.float8_e4m3fn), "w is float8_e4m3fn, in the model float32"),
        ("w", torch.tensor([[0, 0, 0], [0, torch.nan, 0]]), "w holds NaN or infinite numbers"),
        ("w", torch.tensor([[0, 0, 0], [0, -torch.inf, 0]]), "w holds NaN or infinite numbers"),
        ("w", torch.full((2, 3), 1e300, dtype=torch.float64), "w holds NaN or infinite numbers"),
        ("w", torch.zeros(3, 2), r"w has shape \(3, 2\), in the model \(2, 3\)"),
        ("seen", torch.tensor(1.5), "seen is float32, in the model int64"),
        ("flag", torch.tensor(1), "flag is int64, in the model bool"),
    ],
)
def test_a_tensor_that_cannot_be_a_weight_is_named(name: str, tensor: Tensor, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"^x.ckpt: {message}"):
        refuse_unusable_weights({**OWN, name: tensor}, OWN, "x.ckpt")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_and_tensors_of_other_models_pass(dtype: torch.dtype) -> None:
    others = {"other": torch.full((1,), torch.nan), "seen": torch.tensor(7, dtype=torch.int32)}
    refuse_unusable_weights({"w": torch.ones(2, 3, dtype=dtype), **others}, OWN, "x.ckpt")


def test_the_state_of_an_optimizer_is_finite() -> None:
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(3), "other": None}
    refuse_nonfinite_optimizer([{"state": {0: moments}, "param_groups": [{"lr": 0.1, "params": [0]}]}], "x.ckpt")
    refuse_nonfinite_optimizer(None, "x.ckpt")
    for wrong in (torch.tensor([torch.nan]), torch.zeros(1, dtype=torch.complex64)):
        with pytest.raises(
            CheckpointError, match=r"^x.ckpt: optimizer_states.0.state.0.exp_avg holds NaN, infinite or"
        ):
            refuse_nonfinite_optimizer([{"state": {0: {**moments, "exp_avg": wrong}}}], "x.ckpt")


def test_a_run_does_not_start_from_such_weights(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    before = model.weight.item()
    torch.save({"state_dict": {"weight": torch.full((1, 1), torch.nan)}}, tmp_path / "x.ckpt")
    with pytest.raises(CheckpointError, match=r"x\.ckpt: weight holds NaN"):
        initialise_from_pretrained(model, OmegaConf.create({"init_from_ptl_ckpt": str(tmp_path / "x.ckpt")}))
    assert model.weight.item() == before
