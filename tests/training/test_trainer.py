from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nest_ssl.errors import NestError
from nest_ssl.training.trainer import fit


def test_full_memory_gives_one_line_that_names_keys_to_lower() -> None:
    class Trainer:
        global_step = 7

        def fit(self, model: Any, ckpt_path: Path | None) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(NestError, match=r"^the GPU's memory is full at step 7; lower model.train_ds.batch_size and"):
        fit(Trainer(), None, None)  # type: ignore[arg-type]
