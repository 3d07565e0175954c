"""Two processes stop while gradients are accumulated, which differ between them or are parts of a mean, and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.data.dummy import make_dummy_corpus
from tests.differences import differences
from tests.integration.test_distributed import (
    EQUAL_HALVES,
    SHARDED,
    TWO,
    command,
    records,
    run,
    utterances_of_one_length,
)
from tests.integration.test_resume import result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo"),
]
# the first validation, and therefore a checkpoint, is between two updates
HALVES = [
    *("trainer.accumulate_grad_batches=2", "trainer.val_check_interval=3"),
    *("exp_manager.checkpoint_callback_params.save_top_k=-1", "exp_manager.resume_if_exists=false"),
]


def between_updates(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Return the first checkpoint between two updates, and the gradients in it."""
    for path in sorted(folder.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns):
        gradients = load_lightning_checkpoint(path).get("accumulated_gradients")
        if gradients is not None and not path.stem.endswith("-last"):
            return path, gradients
    raise AssertionError(f"no checkpoint in {folder} lies between two updates")


@pytest.mark.parametrize("two", [TWO, SHARDED, [*SHARDED, "model.numerics=fast"]], ids=["ddp", "fsdp", "fsdp, fast"])
def test_every_process_resumes_with_its_own_gradients(two: list[str], tmp_path: Path) -> None:
    corpus = make_dummy_corpus(tmp_path / "corpus", train=24, val=2, noise=2)
    words = command(corpus, *two, *HALVES, "trainer.max_steps=5")
    run(tmp_path / "whole", words)
    checkpoint, gradients = between_updates(tmp_path / "whole")
    if two is TWO:
        first, second = gradients
        assert any(not torch.equal(gradient, second[name]) for name, gradient in first.items())
    run(tmp_path / "parts", [*words, f"exp_manager.resume_from_checkpoint='{checkpoint}'"])
    assert differences(result(tmp_path / "parts"), result(tmp_path / "whole")) == []
    whole, parts = records(tmp_path / "whole"), records(tmp_path / "parts")
    assert [rank["val_losses"][1:] for rank in whole] == [rank["val_losses"] for rank in parts]


@pytest.mark.parametrize(
    ("before", "after"),
    [(SHARDED, TWO), (SHARDED, ["model.train_ds.batch_size=4"]), (TWO, SHARDED)],
    ids=["fsdp, then ddp", "fsdp, then one process", "ddp, then fsdp"],
)
def test_another_number_of_processes_makes_the_same_update(before: list[str], after: list[str], tmp_path: Path) -> None:
    corpus = utterances_of_one_length(tmp_path / "corpus", 24)
    words = command(corpus, *EQUAL_HALVES, *HALVES, "trainer.max_steps=3")
    run(tmp_path / "whole", [*words, *before])
    checkpoint, _ = between_updates(tmp_path / "whole")
    run(tmp_path / "parts", [*words, *after, f"exp_manager.resume_from_checkpoint='{checkpoint}'"])
    ours, theirs = result(tmp_path / "parts"), result(tmp_path / "whole")
    assert ours["global_step"] == theirs["global_step"] == 3
    for name, value in theirs["state_dict"].items():
        torch.testing.assert_close(ours["state_dict"][name], value, rtol=0, atol=1e-6, msg=name)
