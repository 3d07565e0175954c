"""`train.py` that writes a sample of the process after each epoch; soak.py starts it and reads the samples.

Between two batches the count of open files depends on timing: a batch that a worker delivered early holds a file for
each of its tensors, and old workers end while new ones start. At the end of an epoch every batch was consumed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from benchmarks.soak import ROOT, SAMPLES_VARIABLE, Sample
from nest_ssl.training.run import main, train


class CountAtEpochEnd(Callback):
    """Appends one sample to a file of JSON lines at the end of every epoch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()

    def on_train_epoch_end(self, *_: Any) -> None:
        gc.collect()  # free reference cycles first
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(count((time.monotonic() - self._began) / 60))) + "\n")


def count(minutes: float) -> Sample:
    """Return what this process holds now, without the one file that counting opens."""
    open_files = os.listdir("/proc/self/fd")  # noqa: PTH208  (opens exactly one file, the folder itself)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return Sample(
        minutes=minutes,
        megabytes=int(status["VmRSS"].split()[0]) / 1024,
        open_files=len(open_files) - 1,
        processes=1 + len(children),
    )


if __name__ == "__main__":
    counting = CountAtEpochEnd(Path(os.environ[SAMPLES_VARIABLE]))
    run = main(config_dir=ROOT / "config", run=lambda cfg, command: train(cfg, callbacks=[counting], command=command))
    sys.exit(run)
