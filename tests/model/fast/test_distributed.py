"""Synchronised batch norm: two processes with half of the batch each compute the same as one with the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.multiprocessing import spawn

from tests.model.fast.conftest import NOTHING_RANDOM, build, make_batch, take_step

LENGTHS = (30000, 41234, 20000, 41234)  # both halves have a longest utterance
FIRST, LAST = 40, 88  # masked frames, equally many in every utterance


def model_with_fixed_mask(synchronised: bool) -> nn.Module:
    model = build("fast", NOTHING_RANDOM)
    mask = torch.zeros(len(LENGTHS), 1000, dtype=torch.bool)
    mask[:, FIRST:LAST] = True
    model.mask_processor.blocks = lambda lengths, frames: mask[: len(lengths), :frames]  # type: ignore[method-assign]
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if synchronised else model


def step_on(rows: slice, synchronised: bool) -> dict[str, torch.Tensor]:
    """Return the gradients and statistics of a step on some utterances of the batch."""
    batch = make_batch(LENGTHS)
    for name, value in vars(batch).items():
        if isinstance(value, torch.Tensor):
            setattr(batch, name, value[rows])
    step = take_step(model_with_fixed_mask(synchronised), batch, torch.float64)  # type: ignore[arg-type]
    return {**step.gradients, **step.buffers}


def one_of_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.save(step_on(slice(2 * rank, 2 * rank + 2), synchronised=True), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_two_processes_equal_one(tmp_path: Path) -> None:
    spawn(one_of_two, args=(str(tmp_path),), nprocs=2)
    halves = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    whole = step_on(slice(None), synchronised=False)
    largest = max(float(value.abs().max()) for name, value in whole.items() if "running" not in name)
    for name, value in whole.items():
        if "running" in name:
            torch.testing.assert_close(halves[0][name], value, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(halves[1][name], value, rtol=1e-9, atol=1e-12)
        else:
            mean = (halves[0][name] + halves[1][name]) / 2  # as in DDP
            assert float((mean - value).abs().max()) < 1e-9 * largest, name
