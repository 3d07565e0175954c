"""Run `train.py` and write the utterances and the metrics of each rank to `rank<N>.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from nest_ssl.training.run import main, train


class Record(Callback):
    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.val_losses: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        ids, loss = [int(name) for name in batch.sample_id], trainer.callback_metrics.get("train_loss")
        self.batches.append({"epoch": trainer.current_epoch, "ids": ids, "loss": None if loss is None else float(loss)})
        self._write(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.val_losses.append(float(trainer.callback_metrics["val_loss"]))
        self._write(trainer)

    def _write(self, trainer: pl.Trainer) -> None:
        record = {"batches": self.batches, "val_losses": self.val_losses, "step": trainer.global_step}
        path = Path(f"rank{trainer.global_rank}.json")
        path.with_suffix(".tmp").write_text(json.dumps(record))
        path.with_suffix(".tmp").replace(path)


if __name__ == "__main__":
    config_dir = Path(__file__).parents[2] / "config"
    sys.exit(main(config_dir=config_dir, run=lambda cfg, command: train(cfg, callbacks=[Record()], command=command)))
