"""`.nemo` archives cross the border both ways: NeMo restores ours, we restore NeMo's, and no bit changes."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from nest_ssl.checkpoint import load_nemo, save_nemo
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config
from tests.parity.variants import CONFIG


@dataclass(frozen=True)
class Exchange:
    """Our weights, what NeMo read from our archive, and what we read from the archive that NeMo then wrote."""

    ours: dict[str, Tensor]
    read_by_nemo: dict[str, Tensor]
    read_by_us: dict[str, Tensor]


@pytest.fixture(scope="module")
def exchange(nemo: str, tmp_path_factory: pytest.TempPathFactory) -> Exchange:
    folder = tmp_path_factory.mktemp("archives")
    ours, weights, theirs = folder / "ours.nemo", folder / "weights.pt", folder / "theirs.nemo"
    pl.seed_everything(3, verbose=False)
    model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG).model)
    save_nemo(model, ours)
    script = Path(__file__).with_name("exchange_archives.py")
    command = [nemo, str(script), str(ours), str(weights), str(theirs)]
    finished = subprocess.run(command, capture_output=True, text=True, errors="replace")
    assert finished.returncode == 0, finished.stderr[-2000:]
    return Exchange(
        ours=dict(model.state_dict()),
        read_by_nemo=torch.load(weights, weights_only=True),
        read_by_us=load_nemo(theirs).state_dict,
    )


@pytest.mark.parametrize("reader", ["read_by_nemo", "read_by_us"])
def test_weights_survive(exchange: Exchange, reader: str) -> None:
    found: dict[str, Tensor] = getattr(exchange, reader)
    assert list(found) == list(exchange.ours)
    for name, tensor in exchange.ours.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
