"""Steps with a loss or gradient that is not finite: skipped, counted and kept for inspection, up to a limit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from nest_ssl.atomic import atomic_write
from nest_ssl.compat import is_accumulating
from nest_ssl.errors import NestError, one_line

_log = logging.getLogger(__name__)
_MOST_KEPT = 10  # batches of one rank


class NonFiniteSteps(Callback):
    """Reports the steps that the model skipped, and stops the run after too many in a row."""

    def __init__(self, folder: Path | None, most_in_a_row: int) -> None:
        self.folder = folder
        self.most_in_a_row = most_in_a_row
        self.count = 0
        self.in_a_row = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "in_a_row": self.in_a_row}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count, self.in_a_row = state_dict["count"], state_dict["in_a_row"]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        left_out = bool(pl_module.step_left_out)
        loss_is_finite = bool(torch.isfinite(outputs["loss"]))
        kept = (left_out or not loss_is_finite) and self._keep(trainer, batch, outputs["loss"])
        if left_out:
            self.count += 1
            self.in_a_row += 1
            pl_module.log("nonfinite_steps", float(self.count), batch_size=1)
            _log.warning(
                "step %d: the %s is not finite; the step is skipped (so far %d)%s",
                *(trainer.global_step, "gradient or batch norm" if loss_is_finite else "loss", self.count),
                f"; the batch is in {self.folder}" if kept else "",
            )
            if self.in_a_row >= self.most_in_a_row:
                raise NestError(
                    f"step {trainer.global_step}: {self.in_a_row} steps in a row without a finite loss and gradient; "
                    "lower model.optim.lr or use trainer.precision=32" + (f"; see {self.folder}" if self.folder else "")
                )
        elif not is_accumulating(trainer):
            self.in_a_row = 0

    def _keep(self, trainer: Trainer, batch: Any, loss: Tensor) -> bool:
        """Write the batch unless enough are kept; return whether it was written (a full disk does not stop the run)."""
        if self.folder is None or len(list(self.folder.glob(f"*rank{trainer.global_rank}.pt"))) >= _MOST_KEPT:
            return False
        path = self.folder / f"step{trainer.global_step}-rank{trainer.global_rank}.pt"
        try:
            with atomic_write(path) as temporary:
                torch.save({"loss": loss.detach().cpu(), **vars(batch)}, temporary)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
            _log.warning("%s: the batch could not be kept: %s", path, one_line(error))
            return False
        return True
