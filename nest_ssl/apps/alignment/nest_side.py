"""`train_with_saver.py`: train our model and record it, with the recorder that is also used for NeMo."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf

import nest_ssl
from nest_ssl.apps.alignment.recorder.callback import Recorder, RecorderOptions
from nest_ssl.apps.alignment.recorder.files import RecordingError
from nest_ssl.errors import ConfigError
from nest_ssl.folder_lock import lock_folder
from nest_ssl.training import run

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, config_dir: Path = Path("config")) -> int:
    """Train as the command line says, record the steps in `save_steps`, and return the exit code."""
    return run.main(argv, config_dir, program="train_with_saver.py", run=record)


def record(cfg: DictConfig, *, command: Sequence[str]) -> None:
    """Run without experiment folder and checkpoints: the only result is the recording."""
    cfg.exp_manager = None
    cfg.trainer.update(logger=False, enable_checkpointing=False)
    try:
        options = RecorderOptions.from_config(cfg)
        model_config = OmegaConf.to_container(cfg.model, resolve=True)
        recorder = Recorder(options, "nest_ssl", nest_ssl.__version__, model_config)
        with contextlib.ExitStack() as held:
            lock = _Lock(options.output_dir, held)
            run.train(cfg, callbacks=[lock, recorder], command=command)
    except RecordingError as error:
        raise ConfigError(str(error)) from error
    _log.info("recorded in %s", options.output_dir)


class _Lock(Callback):
    """Locks the recording's folder, in the first process, from before the first write until `held` ends."""

    def __init__(self, folder: Path, held: contextlib.ExitStack) -> None:
        self.folder = folder
        self.held = held

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.is_global_zero:
            self.held.enter_context(lock_folder(self.folder, "wait for its end, or give another output_dir"))


if __name__ == "__main__":
    sys.exit(main())
