"""The exact forward is one graph: nothing in it waits for the host or falls back to Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

CONFIG = Path(__file__).parents[2] / "config" / "nest_fast-conformer.yaml"


@pytest.mark.parametrize("override", ["model.masking.allow_overlap=true", "model.masking.allow_overlap=false"])
def test_the_exact_forward_compiles_as_one_graph(override: str) -> None:
    torch.manual_seed(0)
    model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG, [override]).model).train()

    def forward(signal: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        pair = {"input_signal": signal, "input_signal_length": lengths}
        return model(**pair, **{f"noisy_{name}": value for name, value in pair.items()}, apply_mask=True)

    compiled = torch.compile(forward, fullgraph=True, backend="eager")
    for samples in (40000, 24000):
        signal, lengths = torch.randn(2, samples), torch.tensor([samples, samples - 3000])
        results = []
        for run in (forward, compiled):
            torch.manual_seed(1)
            results.append(run(signal, lengths))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
