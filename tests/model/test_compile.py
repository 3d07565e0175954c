"""torch.compile with its eager backend: only the captured graphs matter here, and a C++ compiler would take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

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


def test_layers_are_compiled_once_for_all_and_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        captured.append(graph)
        return graph

    compile_by = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda layer, dynamic: compile_by(layer, dynamic=dynamic, backend=backend)
    )
    plain, compiled = (
        EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG, ["model.encoder.n_layers=4", override]).model).eval()
        for override in ("model.compile=false", "model.compile=true")
    )
    compiled.load_state_dict(plain.state_dict())
    for samples in (40000, 24000):
        pair = {"input_signal": torch.randn(2, samples), "input_signal_length": torch.tensor([samples, samples - 3000])}
        noisy = {f"noisy_{name}": value for name, value in pair.items()}
        expected, *_ = plain(**pair, **noisy)
        log_probs, *_ = compiled(**pair, **noisy)
        torch.testing.assert_close(log_probs, expected)
    assert len(captured) < 4  # fewer graphs than layers, for two lengths
