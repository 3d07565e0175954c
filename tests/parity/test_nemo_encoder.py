"""`USE_NEMO_CONFORMER=true` puts NeMo's encoder into our model, and the numbers stay the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEP = """
import sys, torch
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

torch.manual_seed(0)
model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(sys.argv[1]).model)
speech = torch.randn(2, 40000) * 0.1
lengths = torch.tensor([40000, 30000])
pair = {"input_signal": speech, "input_signal_length": lengths}
log_probs, frames, masks, tokens = model(
    **pair, **{f"noisy_{name}": value for name, value in pair.items()}, apply_mask=True
)
loss = model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens)
loss.backward()
gradient = sum(parameter.grad.double().abs().sum() for parameter in model.encoder.parameters())
print(type(model.encoder).__module__.split(".")[0], loss.item().hex(), gradient.item().hex())
"""


def one_step(python: str, use_nemo: bool) -> list[str]:
    """Run one step; return the module of the encoder, the loss and the sum of the encoder's gradients."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "USE_NEMO_CONFORMER": str(use_nemo).lower()}
    config = str(ROOT / "config" / "nest_fast-conformer.yaml")
    run = subprocess.run(
        [python, "-c", STEP, config], env=environment, capture_output=True, text=True, errors="replace"
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.splitlines()[-1].split()


def test_nemos_encoder_gives_the_same_step() -> None:
    theirs = one_step(os.environ["NEST_NEMO_PYTHON"], use_nemo=True)
    ours = one_step(sys.executable, use_nemo=False)
    assert theirs[0] == "nemo"
    assert ours[0] == "nest_ssl"
    assert theirs[1:] == ours[1:]
