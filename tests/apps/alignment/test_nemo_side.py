"""NeMo's side is adjusted to the machine as nest_ssl is, though it cannot import it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from nest_ssl.apps.alignment import nemo_side
from nest_ssl.config.machine import Machine, fit_to_machine


@pytest.mark.skipif(not hasattr(torch.cpu, "get_capabilities"), reason="an older torch does not tell both sides")
@pytest.mark.parametrize("precision", [32, "16-mixed", 16, "bf16-mixed", 64])
@pytest.mark.parametrize("capabilities", [{}, {"avx512_bf16": True}])
def test_both_sides_train_in_the_same_precision_without_a_gpu(
    precision: Any, capabilities: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    ours = OmegaConf.create({"trainer": {"precision": precision}})
    theirs = OmegaConf.create({"precision": precision})
    fit_to_machine(ours, Machine.here())
    nemo_side._fit_to_machine(theirs)
    assert theirs.precision == ours.trainer.precision
