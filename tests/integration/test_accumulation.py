"""Two processes stop between two updates, with different gradients each, and go on with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.data.dummy import make_dummy_corpus
from tests.integration.test_distributed import TWO, command, run
from tests.integration.test_resume import differences, result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo"),
]


def test_every_process_gets_its_own_gradients_back(tmp_path: Path) -> None:
    corpus = make_dummy_corpus(tmp_path / "corpus", train=24, val=2, noise=2)
    words = command(
        corpus,
        *(*TWO, "trainer.accumulate_grad_batches=2", "trainer.val_check_interval=3", "trainer.max_steps=5"),
        *("exp_manager.checkpoint_callback_params.save_top_k=-1", "exp_manager.resume_if_exists=false"),
    )
    run(tmp_path / "whole", words)
    kept = [path for path in (tmp_path / "whole").rglob("*.ckpt") if not path.stem.endswith("-last")]
    between = [path for path in kept if "accumulated_gradients" in load_lightning_checkpoint(path)]
    assert between
    first, second = load_lightning_checkpoint(between[0])["accumulated_gradients"]
    assert any(not torch.equal(gradient, second[name]) for name, gradient in first.items())
    run(tmp_path / "parts", [*words, f"exp_manager.resume_from_checkpoint='{between[0]}'"])
    assert differences(result(tmp_path / "parts"), result(tmp_path / "whole")) == []
